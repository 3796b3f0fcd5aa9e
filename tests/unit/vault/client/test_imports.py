"""Importing the client costs an application next to nothing, and nothing of the guard's."""

from mpsguard.guard.config import DEFAULT_RUN_DIRECTORY
from mpsguard.vault.wire.address import DEFAULT_SOCKET, socket_path
from tests.imported import modules_after

HEAVY = (
    "asyncio",
    "click",
    "prometheus_client",
    "rich",
    "structlog",
    "zmq",
    "pynvml",
    "sqlite3",
    "torch",
    "cuda",
    "numpy",
)


def test_importing_the_client_brings_nothing_of_the_daemon() -> None:
    modules = modules_after("mpsguard.client")
    assert [name for name in modules if name.split(".")[0] in HEAVY] == []
    floors = {name.split(".")[1] for name in modules if name.startswith("mpsguard.")}
    assert floors == {"client", "linux", "vault"}
    assert {name.split(".")[2] for name in modules if name.startswith("mpsguard.vault.")} == {"client", "wire"}


def test_the_clients_default_is_the_guards() -> None:
    assert str(socket_path(DEFAULT_RUN_DIRECTORY)) == DEFAULT_SOCKET


def test_zones_bring_the_form_of_the_zone_table_and_no_cuda() -> None:
    modules = modules_after("mpsguard.preload.zones")
    assert [name for name in modules if name.split(".")[0] in HEAVY] == []
    of_the_preload = {name.split(".")[2] for name in modules if name.startswith("mpsguard.preload.")}
    assert of_the_preload == {"zone_layout", "zone_table", "zones"}
