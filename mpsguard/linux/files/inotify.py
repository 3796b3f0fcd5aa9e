"""inotify(7) for asyncio: be told when a file was written to, or what is written in a directory, without polling."""

import asyncio
import ctypes
import os
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Final

_IN_MODIFY: Final = 0x2
_IN_CLOSE_WRITE: Final = 0x8
_IN_CREATE: Final = 0x100
_IN_ONLYDIR: Final = 0x1000000
_EVENT: Final = struct.Struct("iIII")
_MOST_OPEN: Final = 1024
"""Files being written in a directory, the beginning of which is remembered."""
_IN_NONBLOCK: Final = os.O_NONBLOCK
_IN_CLOEXEC: Final = os.O_CLOEXEC
_libc: Final = ctypes.CDLL(None, use_errno=True)


class _Watch(ABC):
    """Owns an inotify descriptor, which the running loop reads."""

    def __init__(self, path: Path, mask: int) -> None:
        self._fd = _checked(_libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC))
        try:
            _checked(_libc.inotify_add_watch(self._fd, os.fsencode(path), mask))
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
        try:
            records = os.read(self._fd, 64 * 1024)
        except BlockingIOError:
            return
        self._on_records(records)

    @abstractmethod
    def _on_records(self, records: bytes) -> None:
        """Act on whole records of inotify(7)."""


class FileWatch(_Watch):
    """Calls back, coalesced to once per loop turn, whenever the file at ``path`` was written to."""

    def __init__(self, path: Path, changed: Callable[[], None], *, closed: bool = False) -> None:
        """``closed``: also when a process that could write to it has closed it."""
        self._changed = changed
        super().__init__(path, _IN_MODIFY | (_IN_CLOSE_WRITE if closed else 0))

    def _on_records(self, records: bytes) -> None:  # noqa: ARG002 - what they tell is known: the one file was written to
        self._changed()


class DirectoryWatch(_Watch):
    """Calls back with the name of each file that was made in a directory and then written and closed."""

    def __init__(self, path: Path, written: Callable[[str, float], None]) -> None:
        """``written`` is told the name and when the file was made (CLOCK_MONOTONIC), or closed if that was missed."""
        self._written = written
        self._made: dict[str, float] = {}
        super().__init__(path, _IN_CREATE | _IN_CLOSE_WRITE | _IN_ONLYDIR)

    def _on_records(self, records: bytes) -> None:
        now = time.monotonic()
        at = 0
        while at < len(records) and self._fd >= 0:
            _, mask, _, length = _EVENT.unpack_from(records, at)
            name = os.fsdecode(records[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0"))
            at += _EVENT.size + length
            if mask & _IN_CREATE:
                if len(self._made) >= _MOST_OPEN:
                    self._made.pop(next(iter(self._made)))
                self._made[name] = now
            elif mask & _IN_CLOSE_WRITE:
                self._written(name, self._made.pop(name, now))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
