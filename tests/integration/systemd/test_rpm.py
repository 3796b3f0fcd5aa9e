"""The rpm in a booted system. That is a Debian: rpm's own dependencies are not there and are passed over."""

import shutil
from pathlib import Path

import pytest

from tests.integration.systemd import packaged
from tests.integration.systemd.booted import BootedSystemd
from tests.integration.systemd.conftest import SEEN_INSIDE
from tests.integration.systemd.installed import CONFIGURATION, CONFIGURED, SERVICE, SOCKETS, Client, InstalledGuard

# A campaign's: files and scripts differ little from those of the deb, which every `make test` installs.
pytestmark = [pytest.mark.soak, pytest.mark.systemd, pytest.mark.root, pytest.mark.timeout(1800)]

INSIDE = Path("/opt/packages/mpsguard.rpm")
OPTIONS = ("--nodeps", "--noplugins")


def test_install_upgrade_and_erase(machine: BootedSystemd, tmp_path: Path) -> None:
    if shutil.which("rpm") is None:
        pytest.skip("rpm is not installed")
    guard = InstalledGuard(machine)
    guard.forget_the_hosts_own()
    guard.open_to_every_user(*SEEN_INSIDE)
    machine.copy_file_in(packaged.build(tmp_path, "rpm")["rpm"], INSIDE)
    machine.run("rpm", "--install", *OPTIONS, INSIDE, deadline=120.0)
    # Debian's presets enable everything; nothing is started.
    assert {machine.property(name, "ActiveState") for name in (SERVICE, *SOCKETS)} == {"inactive"}
    machine.write(CONFIGURATION, CONFIGURED)
    machine.systemctl("enable", "--now", *SOCKETS, SERVICE)
    client = Client(machine)
    client.wait_for("started")
    before, lane, pid = guard.pid(), guard.lane(), client.pid()
    bound = {name: machine.property(name, "ActiveEnterTimestampMonotonic") for name in SOCKETS}
    # An upgrade to itself: rpm runs the scripts of both.
    machine.run("rpm", "--upgrade", "--force", *OPTIONS, INSIDE, deadline=120.0)
    assert guard.pid() not in (0, before)
    assert guard.lane() == lane
    guard.knows(pid)
    assert bound == {name: machine.property(name, "ActiveEnterTimestampMonotonic") for name in SOCKETS}
    assert machine.run("cat", CONFIGURATION).stdout == CONFIGURED
    said = machine.run("rpm", "--erase", *OPTIONS, "mpsguard", deadline=120.0).stdout
    assert "CUDA_MPS_PIPE_DIRECTORY=/run/mpsguard/lanes/default-0/pipe" in said
    client.end()
    for name in (SERVICE, *SOCKETS):
        assert machine.property(name, "LoadState") == "not-found"
    assert machine.run("test", "-e", "/usr/lib/mpsguard", check=False).returncode == 1
