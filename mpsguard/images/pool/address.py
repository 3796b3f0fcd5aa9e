"""Where a user's pool listens."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mpsguard.images.pool.errors import PoolError

SOCKET_VARIABLE: Final = "MPSGUARD_POOL"


def default_socket(environment: Mapping[str, str] = os.environ) -> Path:
    """Return ``MPSGUARD_POOL``, or ``mpsguard/pool.sock`` in ``XDG_RUNTIME_DIR``, or in ``~/.local/state``.

    Raises:
        PoolError: the variable is no absolute path, or there is no home directory.
    """
    if named := environment.get(SOCKET_VARIABLE):
        if not Path(named).is_absolute():
            raise PoolError(f"{SOCKET_VARIABLE}={named!r} is no absolute path")
        return Path(named)
    # The XDG rules: a path that is not absolute is as good as none.
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    if Path(runtime).is_absolute():
        return Path(runtime) / "mpsguard" / "pool.sock"
    try:
        return Path.home() / ".local" / "state" / "mpsguard" / "pool.sock"
    except RuntimeError:
        raise PoolError(f"there is no home directory; set {SOCKET_VARIABLE}") from None


def make_directory(directory: Path) -> None:
    """Make the socket's directory (mode 0700) if there is none.

    Raises:
        PoolError: it is another user's, or others may write to it; or the operating system refuses.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat()
    except OSError as error:
        raise PoolError(f"{directory}: {error.strerror}") from None
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise PoolError(f"{directory}: has to be this user's, and no other user may write to it")
