"""The unit files, judged by systemd's own tools."""

from pathlib import Path

import pytest

from tests.integration.systemd.booted import BootedSystemd
from tests.integration.systemd.installed import REPOSITORY, SOCKETS

pytestmark = [pytest.mark.systemd, pytest.mark.root]

UNITS = ("mpsguard.service", "mpsguard.slice", *SOCKETS)
# What is left exposed is what the guard and the vendor's programs need, each with its reason in the unit file.
EXPOSURE_LIMIT = 75


@pytest.fixture(scope="module")
def units(machine: BootedSystemd) -> list[Path]:
    """The unit files where systemd looks for them, with programs where ExecStart= and ExecReload= want them."""
    directory = Path("/etc/systemd/system")
    for name in UNITS:
        machine.run("cp", REPOSITORY / "distribution" / "systemd" / name, directory)
    for program in ("mpsguard", "mpsguard-ctl"):
        machine.run("ln", "-sf", "/bin/true", f"/usr/local/bin/{program}")
    machine.systemctl("daemon-reload")
    return [directory / name for name in UNITS]


def test_units_are_clean(machine: BootedSystemd, units: list[Path]) -> None:
    done = machine.run("systemd-analyze", "verify", "--man=no", *units)
    assert done.stdout + done.stderr == ""


def test_exposure_stays_within_its_limit(machine: BootedSystemd, units: list[Path]) -> None:
    machine.run("systemd-analyze", "security", "--offline=yes", f"--threshold={EXPOSURE_LIMIT}", "--no-pager", units[0])


def test_group_is_made(machine: BootedSystemd) -> None:
    machine.run("systemd-sysusers", REPOSITORY / "distribution" / "systemd" / "mpsguard.sysusers")
    assert machine.run("getent", "group", "mpsguard").stdout.startswith("mpsguard:")


def test_every_socket_names_the_service(machine: BootedSystemd, units: list[Path]) -> None:
    for name in SOCKETS:
        assert machine.property(name, "Triggers") == "mpsguard.service"
    assert set(machine.property("mpsguard.service", "TriggeredBy").split()) == set(SOCKETS)


def test_restart_of_the_service_leaves_the_sockets_alone(machine: BootedSystemd, units: list[Path]) -> None:
    for name in SOCKETS:
        assert "mpsguard.service" not in machine.property(name, "PartOf").split()
        assert "mpsguard.service" not in machine.property(name, "Requires").split()
