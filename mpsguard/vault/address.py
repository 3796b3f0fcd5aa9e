"""Where the vault is reached, for those that serve it and those that use it."""

from pathlib import Path
from typing import Final

SOCKET_VARIABLE: Final = "MPSGUARD_VAULT"
"""Environment variable with the path of the vault's socket, where it is not the default one."""


def socket_path(run_directory: str | Path) -> Path:
    """The vault's socket of the guard that has this run directory."""
    return Path(run_directory) / "vault.sock"


DEFAULT_SOCKET: Final = str(socket_path("/run/mpsguard"))
"""That of a guard whose configuration says nothing else (`config.DEFAULT_RUN_DIRECTORY`; a test compares them)."""
