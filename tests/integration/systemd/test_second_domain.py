"""A domain besides the default one: its sockets are held by systemd, through a socket unit or the descriptor store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.waiting import PATIENCE
from tests.integration.systemd.installed import (
    CONFIGURATION,
    CONFIGURED,
    SERVICE,
    SOCKETS,
    Client,
    InstalledGuard,
    domain,
)

pytestmark = [pytest.mark.systemd, pytest.mark.root]

SECOND = Path("/run/nvidia-mps-b")


@pytest.fixture
def second(guard: InstalledGuard) -> Iterator[InstalledGuard]:
    """The guard with a second domain in its configuration."""
    guard.machine.write(CONFIGURATION, CONFIGURED + domain("second", SECOND, gpu=1))
    guard.machine.systemctl("restart", SERVICE)
    yield guard
    guard.machine.write(CONFIGURATION, CONFIGURED)
    guard.machine.run("rm", "-rf", *(f"/etc/systemd/system/{unit}.d" for unit in SOCKETS))
    guard.machine.systemctl("daemon-reload")
    guard.machine.systemctl("stop", SERVICE)
    guard.machine.systemctl("restart", *SOCKETS)


def test_without_a_socket_unit_the_descriptor_store_holds_its_sockets(second: InstalledGuard) -> None:
    assert second.machine.property(SERVICE, "NFileDescriptorStore") == "2"
    must_wait_and_succeed(second)
    assert second.machine.property(SERVICE, "NFileDescriptorStore") == "2"


def test_socket_units_are_extended_by_drop_ins(second: InstalledGuard) -> None:
    machine = second.machine
    machine.systemctl("stop", SERVICE)
    for unit, name in zip(SOCKETS, ("control", "control_privileged"), strict=True):
        machine.write(
            f"/etc/systemd/system/{unit}.d/second.conf", f"[Socket]\nListenSequentialPacket={SECOND / name}\n"
        )
    machine.systemctl("daemon-reload")
    machine.systemctl("restart", *SOCKETS)
    machine.systemctl("start", SERVICE)
    assert machine.property(SERVICE, "NFileDescriptorStore") == "0"
    assert {domain["name"]: domain["sockets_held"] for domain in second.status()["domains"]} == {
        "default": True,
        "second": True,
    }
    must_wait_and_succeed(second)


def must_wait_and_succeed(guard: InstalledGuard) -> None:
    """A client of the second domain that comes while no guard runs waits, and then gets MPS."""
    with guard.kept_away():
        client = Client(guard.machine, directory=SECOND)
        guard.machine.wait_for(lambda: guard.waiting(SECOND) == 1, PATIENCE, "a connection that is not accepted")
        assert client.events() == []
    client.wait_for("started")
    assert client.events() == ["connected", "started"]
    client.end()
