"""Lets one system call of an operation fail: the first, the second, and so on.

The functions of Python's library are replaced while the operation runs, and count the calls that come from `mpsguard`
itself, on any thread. Each error is that of calls that the kernel gives it to: so nothing of the guard's logic is
replaced, and closing never fails. Where the kernel has no room for descriptors in a packet, it drops them and says so
(MSG_CTRUNC), and so does `_without_descriptors`.
"""

import array
import asyncio
import builtins
import errno
import mmap
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final
from unittest.mock import patch

from tests.integration.transitions.interruption import LONGEST, MOST, Performance, Scene

_NEW: Final = (
    (os, "open"),
    (os, "dup"),
    (os, "memfd_create"),
    (os, "pidfd_open"),
    (os, "pipe"),
    (os, "pipe2"),
    (os, "eventfd"),
    (os, "listdir"),
    (os, "scandir"),
    (builtins, "open"),
    (Path, "open"),
    (Path, "read_text"),
    (Path, "read_bytes"),
    (select, "epoll"),
    (socket, "socketpair"),
    (socket.socket, "__init__"),
    (socket.socket, "accept"),
    (socket.socket, "dup"),
    (socket.socket, "recvmsg"),
    (subprocess, "Popen"),
)
"""What makes a descriptor."""
_RECEIVE: Final = socket.socket.recvmsg
_MEMORY: Final = (
    (os, "memfd_create"),
    (os, "ftruncate"),
    (mmap, "mmap"),
    (socket.socket, "sendmsg"),
    (subprocess, "Popen"),
)
_WRITES: Final = ((os, "pwrite"), (os, "write"), (os, "ftruncate"), (os, "fsync"), (os, "replace"), (os, "rename"))
_READS: Final = ((os, "pread"), (os, "read"))

ERRORS: Final[Mapping[int, tuple[tuple[object, str], ...]]] = {
    errno.EMFILE: _NEW,
    errno.ENOMEM: _MEMORY,
    errno.ENOSPC: _WRITES,
    errno.EIO: (*_WRITES, *_READS),
}
"""Each error, and the calls that fail with it."""

Received = tuple[bytes, list[tuple[int, int, bytes]], int, Any]
"""What recvmsg() returns."""


class Faults:
    """Counts calls, and fails one."""

    def __init__(self, error: int, at: int = 0, way: str = "") -> None:
        """``at``: the number of the call that fails; ``way``: or the first that comes by this one."""
        self._error = error
        self._at = at
        self._way = way
        self.calls = 0
        self.ways: dict[str, int] = {}
        """How many calls came by each way: what was called, the function that called it, and the one that called that.
        """
        self.failed = ""
        """The way of the call that failed."""

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Have the calls counted, and fail the one."""
        with ExitStack() as patched:
            for where, name in ERRORS[self._error]:
                patched.enter_context(patch.object(where, name, self._wrapped(getattr(where, name))))
            yield

    def _wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            caller = sys._getframe(1)
            if str(caller.f_globals.get("__name__", "")).startswith("mpsguard."):
                if options.get("fileno") is not None:
                    # It makes none.
                    return call(*arguments, **options)
                found = call(*arguments, **options) if call is _RECEIVE else None
                if found is not None and not _descriptors(found[1]):
                    return found
                self.calls += 1
                way = f"{_place(caller.f_back)} > {_place(caller)}: {call.__name__}"
                self.ways[way] = self.ways.get(way, 0) + 1
                if self.calls != self._at and (way != self._way or self.failed):
                    return call(*arguments, **options) if found is None else found
                self.failed = way
                if found is None:
                    raise OSError(self._error, os.strerror(self._error))
                return _without_descriptors(found)
            return call(*arguments, **options)

        return counted


def _place(frame: FrameType | None) -> str:
    return f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}" if frame is not None else ""


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data)
    return list(fds)


def _without_descriptors(found: Received) -> Received:
    data, ancillary, flags, address = found
    for fd in _descriptors(ancillary):
        os.close(fd)
    return data, [each for each in ancillary if each[1] != socket.SCM_RIGHTS], flags | socket.MSG_CTRUNC, address


def sweep(scene: Scene, allowed: tuple[type[Exception], ...]) -> int:
    """Play a scene, with each call of its operation failing once; return the number of points.

    ``allowed``: what the operation may raise then.
    """
    points = 0
    for error in ERRORS:
        at = 1
        while asyncio.run(_play(scene, Faults(error, at), allowed)):
            at += 1
            assert at < MOST, "it does not end"
        points += at - 1
    return points


def sweep_ways(scene: Scene, allowed: tuple[type[Exception], ...]) -> int:
    """As `sweep`, with the first call of each way failing: for an operation of very many calls."""
    points = 0
    for error in ERRORS:
        asyncio.run(_play(scene, counted := Faults(error), allowed))
        for way in counted.ways:
            points += asyncio.run(_play(scene, Faults(error, way=way), allowed))
    return points


async def _play(scene: Scene, faults: Faults, allowed: tuple[type[Exception], ...]) -> bool:
    try:
        async with scene() as performance:
            with faults.in_force():
                await _run(performance, allowed)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks are left: {left}"
    except BaseException as error:
        error.add_note(f"{errno.errorcode[faults._error]} in {faults.failed or 'nothing'}")
        raise
    return bool(faults.failed)


async def _run(performance: Performance, allowed: tuple[type[Exception], ...]) -> None:
    try:
        async with asyncio.timeout(LONGEST):
            await performance.work
    except allowed as error:
        performance.error = error
