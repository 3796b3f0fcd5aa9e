"""inotify(7) on single files, for asyncio: be told when a log grows, without polling it."""

import asyncio
import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

_IN_MODIFY: Final = 0x2
_IN_NONBLOCK: Final = os.O_NONBLOCK
_IN_CLOEXEC: Final = os.O_CLOEXEC
_libc: Final = ctypes.CDLL(None, use_errno=True)


class FileWatch:
    """Calls back, coalesced to once per loop turn, whenever the file at ``path`` was written to. Owns one fd."""

    def __init__(self, path: Path, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._fd = _checked(_libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC))
        try:
            _checked(_libc.inotify_add_watch(self._fd, os.fsencode(path), _IN_MODIFY))
            asyncio.get_running_loop().add_reader(self._fd, self._drain)
        except BaseException:
            os.close(self._fd)
            raise

    def close(self) -> None:
        """Stop watching; safe to call twice."""
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _drain(self) -> None:
        # What happened is known (the one file was written to); the records are read only to clear the queue.
        try:
            os.read(self._fd, 64 * 1024)
        except BlockingIOError:
            return
        self._changed()


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
