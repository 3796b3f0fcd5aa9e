"""A worker of a pool: prepares itself, waits for one assignment, serves it, and ends.

def prepare():                     # imports, context, skeleton
    def start(assignment):         # maps the image
        def serve(connection):     # answers the program until it closes the connection
            ...
        return serve
    return start
"""

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from mpsguard.images.pool.image_memory import key_of
from mpsguard.images.pool.image_pages import ImagePages
from mpsguard.images.pool.worker_messages import (
    PACKET,
    FromWorker,
    WorkerFailed,
    WorkerPrepared,
    WorkerStarted,
    decode_assignment,
    encode,
)
from mpsguard.images.pool.worker_modules import load, without_collector
from mpsguard.images.store.errors import ImageError
from mpsguard.images.store.store import ImageStore
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.sockets import seqpacket

_CHECKED: Final = 1.0
"""Seconds between two checks of a worker that waits."""
_GRACE: Final = 10.0
"""Seconds to end in after the pool has ended."""


class Assigned(NamedTuple):
    """What a worker is to start."""

    store: Path
    """Directory of the image's store."""
    name: str
    """The image's name there."""
    key: str
    """Of the image that is meant; see `mpsguard.images.pool.image_memory.key_of`."""
    pages: ImagePages | None
    """The image in host memory; None if the program left it to this worker to hold it."""
    payload: bytes
    """What the program sent along."""


Serve = Callable[[socket.socket], object]
Start = Callable[[Assigned], Serve]


class Warm(NamedTuple):
    """What a preparation may return in the place of `Start` alone."""

    start: Start
    check: Callable[[], object]
    """Called each second while the worker waits; if it raises an exception, the worker ends and another one comes."""


Prepare = Callable[[], Start | Warm]


class WorkerLostError(Exception):
    """Raised by a start: this process cannot work any more, for instance after a fault of its GPU; another one may."""


def main(channel_fd: int, prepare: str) -> int:
    """Run a worker; return its exit code.

    Args:
        channel_fd: of the socket to the pool, owned by this function.
        prepare: the preparation, as ``module:function``.
    """
    with socket.socket(fileno=channel_fd) as channel, ExitStack() as owned:
        if seqpacket.peer(channel).uid != os.geteuid():
            raise PermissionError("the pool is another user's")
        # Whatever ends this function: the pool is told, and the process has its time to end.
        owned.callback(_end_talk, channel)
        connections: list[socket.socket] = []
        _end_with(channel, connections)
        with without_collector():
            prepared = _function(prepare)()
        warm = prepared if isinstance(prepared, Warm) else Warm(prepared, lambda: None)
        _say(channel, WorkerPrepared())
        while not select.select([channel], [], [], _CHECKED)[0]:
            _end_unless(warm.check)
        try:
            packet = seqpacket.receive(channel, PACKET, max_fds=2)
        except OSError:
            return 0
        if packet.end or packet.truncated or not packet.fds:
            close_all(packet.fds)
            return 0
        connection = owned.enter_context(socket.socket(fileno=packet.fds[0]))
        owned.callback(_end_talk, connection)
        connections.append(connection.dup())
        try:
            serve = warm.start(_assigned(packet.data, packet.fds[1:], owned))
        except WorkerLostError as error:
            _end_lost(error)
        except Exception as error:  # the program's own; what it says goes to the program that asked
            # With what is no text, such as the name of a file that is not UTF-8, it could not be sent.
            text = f"{type(error).__name__}: {error}".encode(errors="backslashreplace").decode()
            _say(channel, WorkerFailed(text[:4096]))
            return 1
        _say(channel, WorkerStarted())
        serve(connection)
    return 0


def _end_unless(check: Callable[[], object]) -> None:
    """End the process if the check fails."""
    try:
        check()
    except Exception as error:  # whatever it is, this worker is not what it should be
        _end_lost(error)


def _end_lost(error: Exception) -> NoReturn:
    """End the process at once: the libraries' own ends can hang on a lost context."""
    sys.stderr.write(f"mpsguard pool: worker {os.getpid()} ends: {type(error).__name__}: {error}\n")
    sys.stderr.flush()
    os._exit(1)


def _function(path: str) -> Prepare:
    """Return the function that ``path`` names; end the process with one line if there is none."""
    module, _, name = path.partition(":")
    loaded = load(module, f"--prepare {path}")
    found: Prepare | None = getattr(loaded, name, None)
    if not callable(found):
        sys.exit(f"mpsguard pool: --prepare {path}: module {module} has no function {name}")
    return found


def _assigned(data: bytes, fds: tuple[int, ...], owned: ExitStack) -> Assigned:
    """Return the assignment; its memory goes to ``owned``. Raise ImageError."""
    with ExitStack() as undo:
        undo.callback(close_all, fds)
        assignment = decode_assignment(data)
        directory = Path(assignment.store)
        if not fds:
            return Assigned(directory, assignment.name, assignment.key, None, assignment.payload)
        with ImageStore(directory) as store, store.open(assignment.name) as image:
            manifest = image.manifest
        if key_of(manifest) != assignment.key:
            raise ImageError(f"image {assignment.name}: another one has come in its place")
        undo.pop_all()
    pages = owned.enter_context(ImagePages(fds[0], manifest))
    return Assigned(directory, assignment.name, assignment.key, pages, assignment.payload)


def _say(channel: socket.socket, message: FromWorker) -> None:
    """Tell the pool; one that has ended is noticed by the end of the channel."""
    with suppress(OSError):
        seqpacket.send(channel, encode(message))


def _end_talk(connection: socket.socket) -> None:
    """End a connection for all that have a descriptor of it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _end_with(channel: socket.socket, connections: list[socket.socket]) -> None:
    """End the process some time after its channel, which the pool ends, or its own main function.

    Args:
        channel: to the pool.
        connections: to a program; they are ended with the channel, and owned by the thread that this starts.
    """
    ours = channel.dup()

    def watch() -> None:
        ends = select.poll()
        # Of no event but the end, which cannot be left out: what comes before it is not for this thread.
        ends.register(ours, 0)
        ends.poll()
        for connection in connections:
            _end_talk(connection)
        time.sleep(_GRACE)
        os._exit(1)

    threading.Thread(target=watch, name="pool", daemon=True).start()


if __name__ == "__main__":
    # The preparation's `Warm` and `WorkerLostError` are those of the module by its name, not those of __main__.
    sys.exit(import_module("mpsguard.images.pool.worker").main(int(sys.argv[1]), sys.argv[2]))
