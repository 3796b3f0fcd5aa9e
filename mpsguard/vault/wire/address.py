"""Address of the vault's socket, for the server and its clients."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

SOCKET_VARIABLE: Final = "MPSGUARD_VAULT"
"""Environment variable with the path of the vault's socket, if it is not in the run directory."""

RUN_DIRECTORY_VARIABLE: Final = "MPSGUARD_RUN_DIRECTORY"
"""Environment variable with the guard's run directory, if it is not the default one; the commands read it too."""


def socket_path(run_directory: str | Path) -> Path:
    """Return the path of the vault's socket for a guard with this run directory."""
    return Path(run_directory) / "vault.sock"


DEFAULT_SOCKET: Final = str(socket_path("/run/mpsguard"))
"""The vault's socket for the default run directory (`config.DEFAULT_RUN_DIRECTORY`; a test compares them)."""


def from_environment(environment: Mapping[str, str]) -> str:
    """Return the path of the vault's socket for a client with this environment."""
    if path := environment.get(SOCKET_VARIABLE):
        return path
    directory = environment.get(RUN_DIRECTORY_VARIABLE)
    return str(socket_path(directory)) if directory else DEFAULT_SOCKET
