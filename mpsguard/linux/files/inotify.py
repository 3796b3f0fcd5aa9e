"""inotify(7) for asyncio: be told when a file was written to, or what is written in a directory, without polling."""

import asyncio
import ctypes
import os
import struct
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import ClassVar, Final
from weakref import WeakKeyDictionary

_IN_MODIFY: Final = 0x2
_IN_CLOSE_WRITE: Final = 0x8
_IN_CREATE: Final = 0x100
_IN_Q_OVERFLOW: Final = 0x4000
_IN_IGNORED: Final = 0x8000
_IN_ONLYDIR: Final = 0x1000000
_IN_MASK_ADD: Final = 0x20000000
_EVENT: Final = struct.Struct("iIII")
_MOST_OPEN: Final = 1024
"""Files being written in a directory, the beginning of which is remembered."""
_IN_NONBLOCK: Final = os.O_NONBLOCK
_IN_CLOEXEC: Final = os.O_CLOEXEC
_libc: Final = ctypes.CDLL(None, use_errno=True)


class _Instance:
    """One inotify descriptor for the files that a loop watches; `FileWatch` owns it together with the others.

    Closing a descriptor waits for a grace period of the kernel, 8 ms on an idle machine and seconds on a busy one, and
    ending a watch does not: so one is closed only with its last watch.
    """

    of_loops: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, "_Instance"]] = WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watches: dict[int, list[FileWatch]] = {}
        """By the kernel's numbers: watches of one file have one together."""
        self._fd = _checked(_libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC))
        loop.add_reader(self._fd, self._drain)
        self.of_loops[loop] = self

    @classmethod
    def of_loop(cls) -> "_Instance":
        """Return that of the running loop."""
        loop = asyncio.get_running_loop()
        return cls.of_loops.get(loop) or cls(loop)

    def add(self, path: Path, watch: "FileWatch") -> int:
        """Begin to watch; return the kernel's number."""
        try:
            number = _checked(_libc.inotify_add_watch(self._fd, os.fsencode(path), watch.mask | _IN_MASK_ADD))
        except BaseException:
            self._close_unused()
            raise
        self._watches.setdefault(number, []).append(watch)
        return number

    def remove(self, number: int, watch: "FileWatch") -> None:
        """End a watch."""
        self._watches[number].remove(watch)
        if not self._watches[number]:
            del self._watches[number]
            # It has ended by itself if the file is gone.
            _libc.inotify_rm_watch(self._fd, number)
        self._close_unused()

    def _close_unused(self) -> None:
        if not self._watches:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._fd)
            del self.of_loops[loop]
            os.close(self._fd)

    def _drain(self) -> None:
        told: dict[FileWatch, None] = {}
        for number, mask, _ in _records(self._fd):
            lost = mask & _IN_Q_OVERFLOW
            for watch in chain(*self._watches.values()) if lost else self._watches.get(number, ()):
                if lost or mask & (watch.mask | _IN_IGNORED):
                    told[watch] = None
        for watch in told:
            watch.tell()


class FileWatch:
    """Calls back, coalesced to once per loop turn, whenever the file at ``path`` was written to."""

    def __init__(self, path: Path, changed: Callable[[], None], *, closed: bool = False) -> None:
        """``closed``: also when a process that could write to it has closed it."""
        self.mask: Final = _IN_MODIFY | (_IN_CLOSE_WRITE if closed else 0)
        self._changed = changed
        self._instance: _Instance | None = _Instance.of_loop()
        self._number = self._instance.add(path, self)

    def close(self) -> None:
        """Stop watching; safe to call twice."""
        instance, self._instance = self._instance, None
        if instance is not None:
            instance.remove(self._number, self)

    def tell(self) -> None:
        """Call back, unless it was closed meanwhile."""
        if self._instance is not None:
            self._changed()


class DirectoryWatch:
    """Calls back with the name of each file that was made in a directory and then written and closed.

    Owns a descriptor: users that may write there could fill the queue of others' watches.
    """

    def __init__(self, path: Path, written: Callable[[str, float], None]) -> None:
        """``written`` is told the name and when the file was made (CLOCK_MONOTONIC), or closed if that was missed."""
        self._written = written
        self._made: dict[str, float] = {}
        self._fd = _checked(_libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC))
        try:
            mask = _IN_CREATE | _IN_CLOSE_WRITE | _IN_ONLYDIR
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
        now = time.monotonic()
        for _, mask, name in _records(self._fd):
            if self._fd < 0:
                return
            if mask & _IN_CREATE:
                if len(self._made) >= _MOST_OPEN:
                    self._made.pop(next(iter(self._made)))
                self._made[name] = now
            elif mask & _IN_CLOSE_WRITE:
                self._written(name, self._made.pop(name, now))


def _records(fd: int) -> Iterator[tuple[int, int, str]]:
    """Read what there is, and yield number, mask and name of each record of inotify(7)."""
    try:
        records = os.read(fd, 64 * 1024)
    except BlockingIOError:
        return
    at = 0
    while at < len(records):
        number, mask, _, length = _EVENT.unpack_from(records, at)
        yield number, mask, os.fsdecode(records[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0"))
        at += _EVENT.size + length


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
