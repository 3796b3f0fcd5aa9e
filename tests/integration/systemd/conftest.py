"""One machine under a real systemd for each test module; skips all of it where none can be booted."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.systemd.booted import BootedSystemd, missing
from tests.integration.systemd.installed import CONFIGURATION, CONFIGURED, REPOSITORY, Client, InstalledGuard

SEEN_INSIDE = (REPOSITORY, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve())


@pytest.fixture(scope="module")
def machine() -> Iterator[BootedSystemd]:
    """A freshly booted machine that sees this checkout and this interpreter."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with BootedSystemd(SEEN_INSIDE) as booted:
        yield booted


@pytest.fixture(scope="module")
def installed(machine: BootedSystemd) -> InstalledGuard:
    """mpsguard, installed and started by scripts/install."""
    guard = InstalledGuard(machine)
    guard.forget_the_hosts_own()
    machine.write(CONFIGURATION, CONFIGURED)
    guard.open_to_every_user(*SEEN_INSIDE)
    guard.install()
    return guard


@pytest.fixture
def guard(installed: InstalledGuard) -> Iterator[InstalledGuard]:
    """The same, running, under the unit as it was installed, with no client left by the test before."""
    if not installed.is_installed():
        installed.install()
    installed.machine.systemctl("start", "mpsguard.service")
    yield installed
    installed.take_drop_ins_away()


@pytest.fixture
def clients(guard: InstalledGuard) -> Iterator[list[Client]]:
    """Three clients at work; each has to end well."""
    started = [Client(guard.machine) for _ in range(3)]
    for client in started:
        client.wait_for("started")
        assert "bare" not in client.events()
    yield started
    for client in started:
        client.end()
