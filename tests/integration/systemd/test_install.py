"""scripts/install: install, upgrade, refuse, uninstall."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mpsguard
from tests.harness.waiting import PATIENCE
from tests.integration.systemd.installed import (
    CONFIGURATION,
    CONFIGURED,
    PIPE_DIRECTORY,
    REPOSITORY,
    SERVICE,
    SIMULATED,
    SOCKETS,
    Client,
    InstalledGuard,
)

pytestmark = [pytest.mark.systemd, pytest.mark.root, pytest.mark.slow(seconds=60, reason="boots systemd and installs")]


def test_upgrade_restarts_only_the_guard(guard: InstalledGuard, clients: list[Client]) -> None:
    before, lane, pids = guard.pid(), guard.lane(), [client.pid() for client in clients]
    bound = {name: guard.machine.property(name, "ActiveEnterTimestampMonotonic") for name in SOCKETS}
    # The checkout inside is a copy: this is the next release.
    source = REPOSITORY / "mpsguard" / "__init__.py"
    text = guard.machine.run("cat", source).stdout
    guard.machine.write(source, text.replace(mpsguard.__version__, "99.0"))
    guard.install()
    assert guard.status()["version"] == "99.0"
    assert guard.pid() not in (0, before)
    assert guard.lane() == lane
    assert [client.pid() for client in clients] == pids
    guard.knows(*pids)
    assert bound == {name: guard.machine.property(name, "ActiveEnterTimestampMonotonic") for name in SOCKETS}


def test_configuration_is_kept(guard: InstalledGuard) -> None:
    guard.install("--no-start")
    assert guard.machine.run("cat", CONFIGURATION).stdout == CONFIGURED


def test_units_start_with_the_machine(guard: InstalledGuard) -> None:
    for name in (SERVICE, *SOCKETS):
        assert guard.machine.systemctl("is-enabled", name).stdout == "enabled\n"


def test_guard_that_does_not_start_is_reported(guard: InstalledGuard) -> None:
    guard.machine.write(CONFIGURATION, "[guard]\nno_such_key = 1\n")
    try:
        done = guard.install(check=False)
        assert done.returncode == 1
        assert "journalctl" in done.stderr
    finally:
        guard.machine.write(CONFIGURATION, CONFIGURED)
    guard.install()
    assert guard.status()["health"] == "healthy"


def test_uninstall_leaves_configuration_and_lanes(guard: InstalledGuard, clients: list[Client]) -> None:
    control = guard.lane()["control"]["pid"]
    for _ in range(2):  # the second time there is nothing to do
        guard.uninstall()
        assert guard.pid() == 0
        for name in (SERVICE, *SOCKETS):
            assert guard.machine.property(name, "LoadState") == "not-found"
        for path in (PIPE_DIRECTORY / "control", Path("/opt/mpsguard"), Path("/usr/local/bin/mpsguard")):
            assert guard.machine.run("test", "-e", path, check=False).returncode == 1
    assert guard.machine.run("cat", CONFIGURATION).stdout == CONFIGURED
    guard.machine.run("kill", "-0", str(control))
    # A virtual environment that was only lent stays.
    guard.machine.run("test", "-x", Path(sys.prefix) / "bin" / "mpsguard")
    guard.install()
    assert guard.lane()["control"]["pid"] == control
    guard.knows(*(client.pid() for client in clients))


def test_it_does_not_take_a_running_daemons_place(guard: InstalledGuard) -> None:
    machine = guard.machine
    guard.uninstall()
    stock: list[str | Path] = [
        "env",
        f"CUDA_MPS_PIPE_DIRECTORY={PIPE_DIRECTORY}",
        "CUDA_MPS_LOG_DIRECTORY=/var/log",
        SIMULATED,
    ]
    machine.run(*stock, "-d")
    done = guard.install(check=False)
    assert done.returncode == 1
    assert str(PIPE_DIRECTORY) in done.stderr
    assert machine.property(SERVICE, "LoadState") == "not-found"
    machine.run(*stock, "quit")
    machine.wait_for(lambda: guard.install(check=False).returncode == 0, PATIENCE, "an installation")


@pytest.mark.soak
def test_package_built_elsewhere_runs(guard: InstalledGuard, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={tmp_path}", "msgspec"]
    if subprocess.run(pip, capture_output=True, check=False, timeout=120).returncode:
        pytest.skip("pip reaches no package index from here")
    built = tmp_path / "built"
    # Outside: the machine has no network.
    script: list[str | Path] = [REPOSITORY / "scripts" / "install", "--destdir", built]
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run(script, env=environment, capture_output=True, check=True, timeout=300)
    machine = guard.machine
    guard.uninstall()
    machine.copy_in(built)
    assert machine.run("cat", CONFIGURATION).stdout == CONFIGURED
    machine.systemctl("daemon-reload")
    machine.systemctl("start", SERVICE)
    assert guard.status()["health"] == "healthy"
    assert "/opt/mpsguard/venv." in machine.run("cat", f"/proc/{guard.pid()}/cmdline").stdout
    guard.uninstall()
    assert machine.run("test", "-e", "/opt/mpsguard", check=False).returncode == 1


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (["--no-such-option"], 2),
        (["--prefix"], 2),
        (["--prefix", "relative"], 2),
        (["--prefix", "/"], 2),
        (["--venv", "/usr", "--no-start"], 1),
    ],
)
def test_mistakes_are_one_line(guard: InstalledGuard, options: list[str], status: int) -> None:
    done = guard.machine.run(REPOSITORY / "scripts" / "install", *options, check=False)
    assert done.returncode == status
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
