"""Importing the client costs an application next to nothing, and nothing of the guard's."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
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
LISTED = "import sys, mpsguard.client; print(*sorted(sys.modules))"


def test_importing_the_client_brings_nothing_of_the_daemon() -> None:
    said = subprocess.run([sys.executable, "-c", LISTED], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    modules = said.split()
    assert "mpsguard.client" in modules
    assert [name for name in modules if name.split(".")[0] in HEAVY] == []
    floors = {name.split(".")[1] for name in modules if name.startswith("mpsguard.")}
    assert floors == {"client", "linux", "model", "standby", "vault"}
    assert {name for name in modules if name.startswith("mpsguard.standby.")} == {"mpsguard.standby.wire"}
    of_the_vault = {name for name in modules if name.startswith("mpsguard.vault.")}
    assert of_the_vault == {f"mpsguard.vault.{name}" for name in ("errors", "record", "region", "wire")}
