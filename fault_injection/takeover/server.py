"""A token server with a simulated GPU, under `mpsguard run --standby`; written as a real one would be.

These rules make a failover seamless: a token counts once it is published, and is written to the client only then; the
bytes behind `stream.written` are computed from the cache again; a request is only peeked at, and removed from its
connection after it has been answered.
"""

import mmap
import os
import random
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from fault_injection.takeover import model, state, traps
from fault_injection.takeover.keeping import Keeping
from fault_injection.takeover.state import Known, State
from fault_injection.takeover.traps import Effect, Point, Traps
from mpsguard import client
from mpsguard.linux.systemd import service_manager
from mpsguard.vault.client import tcp_progress
from mpsguard.vault.client.kept_connections import KeptConnections, SupersededError

GATED_VARIABLE: Final = "MPSGUARD_SIMULATION_GATED"
"""Set if connections are to be used inside a gate alone."""
_LONGEST_REQUEST: Final = 4096
_SEND_BUFFER: Final = 16384
"""Small, so that a client that reads slowly leaves writes half done."""
_IDLE: Final = 5.0
_STEP: Final = 0.0005
"""Seconds that a step takes."""
_LATE: Final = 0.01
"""Seconds, at most, for which a process that was fenced off does nothing."""
_SESSION: Final = "simulated"
_CACHE: Final = "cache"

Reach = Callable[[Point], Effect | None]
"""Called at each point; says what happens to the process there, if it comes back."""


class Server:
    """One process of the program."""

    def __init__(self, listener: socket.socket, session: Keeping, reach: Reach, operate: Callable[[], None]) -> None:
        """``operate`` is called in each step, where the GPU would be at work; what it raises ends the server."""
        self._listener = listener
        self._reached = reach
        self._operate = operate
        self._connections = KeptConnections.from_environment(io_fence=GATED_VARIABLE in os.environ)
        self._sockets: dict[int, socket.socket] = {}
        self._sent: dict[int, int] = {}
        """Bytes written to each connection."""
        self._state = State()
        self._session = session
        self._cache = self._map()
        self._next_tag = 0

    def run(self) -> None:
        """Serve until a signal ends this process."""
        self._reach(Point.MAPPED)
        self._session.ready()
        self._reach(Point.PROMOTED)
        self._sockets = self._connections.take()
        with self._connections.in_use():
            self._take_over()
        while True:
            self._accept()
            with self._connections.in_use():
                self._look()
            self._step()
            with self._connections.in_use():
                self._write()
                self._finish()

    # --- how it begins

    def _map(self) -> mmap.mmap:
        try:
            region = self._session.open(_CACHE)
        except client.UnknownRegionError:
            fd = os.memfd_create(_CACHE, os.MFD_CLOEXEC)
            os.ftruncate(fd, model.CACHE)
            self._session.create(_CACHE, [client.Chunk(fd, model.CACHE)])
            try:
                return mmap.mmap(fd, model.CACHE)
            finally:
                os.close(fd)
        return mmap.mmap(region.fds[0], model.CACHE)

    def _take_over(self) -> None:
        published = self._session.state()
        if published is not None:
            self._state = state.decode(published)
        self._reach(Point.TAKEN)
        # A request without a kept connection was answered: it is dropped from the connection before the state.
        known = {tag: known for tag, known in self._state.known.items() if tag in self._sockets}
        in_step = {tag: known[tag].tokens for tag in self._state.in_step if tag in known}
        self._state = State(known, (), self._state.book.died(in_step))
        self._next_tag = 1 + max((*self._sockets, *self._state.known), default=0)
        for tag, sock in list(self._sockets.items()):
            sock.setblocking(False)
            try:
                self._sent[tag] = tcp_progress.written(sock)
            except ConnectionResetError:
                self._forget(tag)
        self._publish()
        self._reach(Point.REPUBLISHED)

    # --- what it does again and again

    def _accept(self) -> None:
        works = any(not known.complete for known in self._state.known.values())
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        for tag, sock in self._sockets.items():
            if tag not in self._state.known:
                poller.register(sock, select.POLLIN)
            elif self._due(tag):
                poller.register(sock, select.POLLOUT)
        ready = {fd for fd, _ in poller.poll(0 if works else _IDLE * 1000)}
        if self._listener.fileno() not in ready or len(self._sockets) >= model.SLOTS:
            return
        accepted = self._connections.accept(self._listener, self._next_tag)
        if accepted is not None:
            self._reach(Point.ACCEPTED)
            accepted.setblocking(False)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            self._sockets[self._next_tag] = accepted
            self._sent[self._next_tag] = 0
            self._next_tag += 1

    def _look(self) -> None:
        """Learn requests; they stay in their connections."""
        known = dict(self._state.known)
        for tag, sock in list(self._sockets.items()):
            if tag in known:
                continue
            try:
                seen = sock.recv(_LONGEST_REQUEST, socket.MSG_PEEK)
                request = model.parse(seen)
            except BlockingIOError:
                continue
            except (OSError, ValueError):
                self._forget(tag)
                continue
            if not seen:
                self._forget(tag)
            elif request is not None:
                used = {each.slot for each in known.values()}
                known[tag] = Known(request, next(slot for slot in range(model.SLOTS) if slot not in used))
        if len(known) != len(self._state.known):
            self._state = replace(self._state, known=known)
            self._publish()
            self._reach(Point.KNOWN)

    def _step(self) -> None:
        """Compute one token for each request in this turn."""
        turn = self._state.book.next_step(tag for tag, known in self._state.known.items() if not known.complete)
        known, book = dict(self._state.known), self._state.book
        for tag in turn.skip:
            known[tag] = replace(known[tag], skipped=True)
            book = book.finished(tag)
        if not turn.run and not turn.skip:
            return
        self._state = State(known, turn.run, book)
        self._publish()
        for tag in turn.run:
            self._compute(known[tag])
            known[tag] = replace(known[tag], tokens=known[tag].tokens + 1)
            book = book.progressed(tag, known[tag].tokens)
        self._operate()
        self._reach(Point.COMPUTED)
        self._state = State(known, (), book)
        self._publish()
        self._reach(Point.PUBLISHED)

    def _compute(self, known: Known) -> None:
        index = known.tokens
        if index == known.request.poison:
            os.kill(os.getpid(), signal.SIGKILL)
        before = self._entry(known, index - 1) if index else model.first(known.request)
        at = self._at(known, index)
        entry = model.entry(before)
        # In two halves, so that a process can die between them.
        self._cache[at : at + model.ENTRY // 2] = entry[: model.ENTRY // 2]
        self._cache[at + model.ENTRY // 2 : at + model.ENTRY] = entry[model.ENTRY // 2 :]

    def _write(self) -> None:
        for tag in list(self._state.known):
            due = self._due(tag)
            if not due:
                continue
            if self._send(tag, due[: len(due) // 2]):
                self._reach(Point.HALF_WRITTEN)
                self._send(tag, self._due(tag))
        self._reach(Point.WRITTEN)

    def _finish(self) -> None:
        over = [tag for tag, known in self._state.known.items() if known.complete and not self._due(tag)]
        for tag in over:
            answered = self._sockets.get(tag)
            if answered is not None:
                # Or the peer would be told of it by a reset. Another process may have been here before.
                with suppress(OSError):
                    answered.recv(len(self._state.known[tag].request.line()))
                self._reach(Point.FINISHED)
            self._forget(tag)
            self._reach(Point.DROPPED)
        if over:
            known = {tag: known for tag, known in self._state.known.items() if tag not in over}
            book = self._state.book
            for tag in over:
                book = book.finished(tag)
            self._state = State(known, (), book)
            self._publish()

    # --- pieces

    def _publish(self) -> None:
        self._session.publish(state.encode(self._state))

    def _entry(self, known: Known, index: int) -> bytes:
        at = self._at(known, index)
        return self._cache[at : at + model.ENTRY]

    @staticmethod
    def _at(known: Known, index: int) -> int:
        return (known.slot * model.MOST_TOKENS + index) * model.ENTRY

    def _due(self, tag: int) -> bytes:
        """What is published and not yet written; nothing for a connection that is over."""
        known, sent = self._state.known[tag], self._sent.get(tag)
        if sent is None:
            return b""
        first, skip = divmod(sent, known.request.width)
        pieces = [model.token(known.request, self._entry(known, index)) for index in range(first, known.tokens)]
        if known.skipped:
            after = known.tokens * known.request.width
            if sent >= after:
                return model.SKIPPED[sent - after :]
            pieces.append(model.SKIPPED)
        return b"".join(pieces)[skip:]

    def _send(self, tag: int, data: bytes) -> bool:
        """Write what the connection takes; whether it took all."""
        try:
            sent = self._sockets[tag].send(data)
        except BlockingIOError:
            return False
        except OSError:
            self._forget(tag)
            return False
        self._sent[tag] += sent
        return sent == len(data)

    def _forget(self, tag: int) -> None:
        self._connections.drop(tag)
        sock = self._sockets.pop(tag, None)
        self._sent.pop(tag, None)
        if sock is not None:
            sock.close()

    def _reach(self, point: Point) -> None:
        if self._reached(point) is Effect.FENCE:
            self._session.close(in_order=False)
            # So that what it does next may fall into the takeover.
            time.sleep(random.uniform(0, _LATE))


def main() -> None:
    """The program; the first descriptor that was handed over is its listening socket."""
    hit = Traps(Path(os.environ[traps.VARIABLE]))
    hit.reach(Point.STARTED)
    fds = service_manager.take_listen_fds()
    session = client.join(_SESSION, keep=None)
    with suppress(SupersededError):
        Server(socket.socket(fileno=min(fds)), session, hit.reach, lambda: time.sleep(_STEP)).run()


if __name__ == "__main__":
    main()
