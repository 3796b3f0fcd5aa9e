"""The directory into which clients that opted in write their GPU core dumps.

A client opts in by its environment (docs/sm-faults.md): ``CUDA_ENABLE_COREDUMP_ON_EXCEPTION=1`` and
``CUDA_COREDUMP_FILE=DIRECTORY/core.%p``. Anybody may write there, as in /tmp: a file counts as a client's own only if
its name has the client's pid and its owner is the client's user. One from another pid namespace has a pid that is no
client's; its places count all the same. Files stay where they are: they are their owners'.
"""

import os
import re
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from mpsguard.linux.inotify import DirectoryWatch
from mpsguard.model import Client, ProcessKey
from mpsguard.sensors.state import SensorState

MODE: Final = 0o1733
"""Everybody may make files and open those whose names they know; nobody may list them or remove another's."""
LARGEST: Final = 256 << 20
"""Bytes of a dump that is read; a full one of a small program has 22 MB (H200, driver 580.159.04)."""
_NAME: Final = re.compile(r"core\.([1-9][0-9]{0,9})$", re.ASCII)

Dumped = Callable[[Callable[[], bytes], float, ProcessKey | None], None]
"""See `SmErrorSensor.dumped`."""


class CoreDirectory:
    """Watches one directory. Owns a descriptor of it, and the watch. To be told of clients."""

    name: Final = "core directory"

    def __init__(self, path: Path, dumped: Dumped) -> None:
        """OSError if the directory cannot be made, or is not ours alone to rule."""
        self._path = path
        self._dumped = dumped
        self._clients: dict[int, Client] = {}
        self._refused = 0
        path.mkdir(mode=MODE, parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(self._fd).st_uid != os.geteuid():
                raise PermissionError(f"{path} belongs to another user")
            os.fchmod(self._fd, MODE)
            self._watch = DirectoryWatch(Path(f"/proc/self/fd/{self._fd}"), self._written)
        except BaseException:
            os.close(self._fd)
            raise

    def client_came(self, client: Client) -> None:
        """A client whose dump would be its own word."""
        self._clients[client.process.pid] = client

    def client_ended(self, client: Client) -> None:
        """It has ended; its dump was written before."""
        if self._clients.get(client.process.pid) == client:
            del self._clients[client.process.pid]

    def state(self) -> SensorState:
        """Where it is, and what was not believed."""
        refused = f"; {self._refused} files refused" if self._refused else ""
        return SensorState(True, f"watches {self._path}{refused}")

    def close(self) -> None:
        """Give everything back; safe to call twice."""
        self._watch.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _written(self, name: str, began: float) -> None:
        found = _NAME.match(name)
        try:
            if found is None:
                raise OSError(f"{name!r} is not core.PID")
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._fd)
        except OSError:
            self._refused += 1
            return
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_size > LARGEST:
            os.close(file)
            self._refused += 1
            return
        client = self._clients.get(int(found[1]))
        own = client is not None and client.uid == about.st_uid
        self._dumped(partial(_read, file), began, client.process if own and client else None)


def _read(file: int) -> bytes:
    with open(file, "rb") as dump:
        return dump.read(LARGEST)
