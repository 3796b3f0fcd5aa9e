"""The installed guard with regions in its vault: SIGKILL, upgrade and stop cost no byte of them."""

import sys

import pytest

from tests.harness.waiting import PATIENCE
from tests.integration.systemd.installed import REPOSITORY, SERVICE, InstalledGuard
from tests.integration.systemd.test_vault import CHECK, RUN, WRITER

pytestmark = [pytest.mark.systemd, pytest.mark.root, pytest.mark.slow(seconds=30, reason="boots systemd")]

HERE = "/run/mpsguard"
UNIT = "vault-user.service"


def check(guard: InstalledGuard) -> int:
    """Verify every byte from another process; the sequence number of the forward state."""
    command = f"cd {REPOSITORY} && exec {sys.executable} - 1"
    return int(guard.machine.run("sh", "-c", command, stdin=CHECK.replace(RUN, HERE), deadline=60).stdout)


def test_regions_outlive_sigkill_upgrade_and_stop(guard: InstalledGuard) -> None:
    machine = guard.machine
    machine.write("/run/vault-user.py", WRITER.replace(RUN, HERE))
    machine.run(
        *("systemd-run", "--quiet", f"--unit={UNIT}", f"--setenv=PYTHONPATH={REPOSITORY}"),
        *("--", sys.executable, "/run/vault-user.py"),
    )
    machine.wait_for(lambda: "made" in machine.journal(UNIT).splitlines(), PATIENCE, "the regions")
    seen = check(guard)
    old = guard.pid()
    guard.kill("SIGKILL")
    old = guard.wait_for_another(old)
    assert check(guard) > seen
    guard.install()
    assert guard.wait_for_another(old) not in (0, old)
    assert check(guard) > seen
    machine.systemctl("stop", SERVICE)
    machine.systemctl("start", SERVICE)
    assert check(guard) > seen
    code, listed = guard.ctl("vault", "list")
    assert code == 0
    assert [each["name"] for each in listed["sessions"]] == ["work"]
    machine.systemctl("stop", UNIT)
    code, _ = guard.ctl("vault", "release", "0", "work")
    assert code == 0
