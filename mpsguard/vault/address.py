"""Address of the vault's socket, for the server and its clients."""

from pathlib import Path
from typing import Final

SOCKET_VARIABLE: Final = "MPSGUARD_VAULT"
"""Environment variable with the path of the vault's socket, if it is not the default path."""


def socket_path(run_directory: str | Path) -> Path:
    """Return the path of the vault's socket for a guard with this run directory."""
    return Path(run_directory) / "vault.sock"


DEFAULT_SOCKET: Final = str(socket_path("/run/mpsguard"))
"""The vault's socket for the default run directory (`config.DEFAULT_RUN_DIRECTORY`; a test compares them)."""
