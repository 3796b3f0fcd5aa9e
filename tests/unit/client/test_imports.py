"""Importing the client costs an application next to nothing, and nothing of the guard's."""

from mpsguard.config import DEFAULT_RUN_DIRECTORY
from mpsguard.vault.address import DEFAULT_SOCKET, socket_path
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
    assert floors == {"client", "decoding", "linux", "model", "pacing", "supervisor", "vault"}
    of_the_standby = {name for name in modules if name.startswith("mpsguard.supervisor.")}
    assert of_the_standby == {f"mpsguard.supervisor.{name}" for name in ("role", "wire")}
    of_the_vault = {name for name in modules if name.startswith("mpsguard.vault.")}
    assert of_the_vault == {
        f"mpsguard.vault.{name}" for name in ("address", "errors", "latency_counts", "region", "state_buffer", "wire")
    }


def test_the_clients_default_is_the_guards() -> None:
    assert str(socket_path(DEFAULT_RUN_DIRECTORY)) == DEFAULT_SOCKET


def test_zones_bring_the_form_of_the_zone_table_and_no_cuda() -> None:
    modules = modules_after("mpsguard.client.zones")
    assert [name for name in modules if name.split(".")[0] in HEAVY] == []
    of_the_preload = {name for name in modules if name.startswith("mpsguard.preload.")}
    assert of_the_preload == {f"mpsguard.preload.{name}" for name in ("zone_layout", "zone_table")}
