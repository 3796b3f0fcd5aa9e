"""The HTTP side: accepts connections and streams tokens as they are computed, on one thread.

Connections are used only inside the supervisor's I/O fence, and the GPU only outside: a superseded process that is
inside the driver delays no other process.

The order of steps makes a failover lossless. A request is published, then read from its socket. A token is published,
then written. An answer's end is written, then the supervisor drops the connection, then the state forgets the request.
"""

import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from examples.llm_server import http
from examples.llm_server import state as forward
from examples.llm_server.peers import Peer
from examples.llm_server.state import Request, State
from mpsguard.vault.client.kept_connections import KeptConnections, NotKeptError

_PAUSE: Final = 0.2
"""Seconds to leave a connection that cannot be kept in the backlog, and between checks of deadlines."""
MOST_PEERS: Final = 256
"""Maximum number of connections; others wait in the backlog."""


class Work(Protocol):
    """What is served: `Engine`, or for tests something that computes tokens without a model."""

    state: State

    def admit(self, request: Request) -> None:
        """Begin and publish a request."""

    def step(self) -> Mapping[int, int]:
        """Compute and publish one more token for some requests."""

    def forget(self, ids: Sequence[int]) -> None:
        """Publish the removal of requests."""


class Server:
    """Serves until `stop` is called. Owns the connections, not the listening socket."""

    def __init__(
        self,
        work: Work,
        listener: socket.socket,
        connections: KeptConnections,
        *,
        slots: int,
        vocabulary: int,
        length: int,
    ) -> None:
        self._work = work
        self._listener = listener
        self._connections = connections
        self._slots = slots
        self._vocabulary = vocabulary
        self._length = length
        self._selector = selectors.DefaultSelector()
        self._peers: dict[int, Peer] = {}
        self._next_tag = work.state.next_id
        self._accept_again = 0.0
        self._stopped = False
        listener.setblocking(False)
        kept = connections.take()
        with connections.in_use():
            self._resume(kept)

    def stop(self) -> None:
        """Make `run` return soon; for a signal handler."""
        self._stopped = True

    def run(self) -> None:
        """Serve until `stop`.

        Raises:
            StaleGenerationError, SupersededError: another process has taken over.
            Exception: publishing or computing failed.
        """
        while not self._stopped:
            self._register(time.monotonic())
            busy = bool(forward.to_compute(self._work.state))
            ready = self._selector.select(0 if busy else _PAUSE)
            if any(key.data is None for key, _ in ready):
                # Only when a connection waits: the supervisor may be busy starting a standby.
                self._accept()
            with self._connections.in_use():
                for key, events in ready:
                    if isinstance(key.data, Peer):
                        self._serve(key.data, events)
                self._admit()
            tokens = self._work.step()
            with self._connections.in_use():
                for id_, token in tokens.items():
                    self._answer(id_, token)
                self._finish(time.monotonic())

    def close(self) -> None:
        """Close all connections. Safe to call twice."""
        for peer in self._peers.values():
            peer.sock.close()
        self._peers.clear()
        self._selector.close()

    def _resume(self, kept: Mapping[int, socket.socket]) -> None:
        """Continue the connections of the previous process."""
        for tag, sock in kept.items():
            peer = self._peers[tag] = Peer(sock, tag)
            request = self._work.state.request(tag)
            self._next_tag = max(self._next_tag, tag + 1)
            if request is not None:
                peer.received = http.Received(http.Wanted(request.prompt, request.limit, request.seed), 0)
                peer.finished = request.over
                peer.resume(http.answer(request))
            else:
                # Not in the state: it was not answered, or it was refused, or answered and forgotten.
                peer.look(vocabulary=self._vocabulary, length=self._length)
                peer.finished = peer.finished or (peer.received is None and peer.written() > 0)
        self._work.forget([r.id for r in self._work.state.requests if r.id not in self._peers])

    def _accept(self) -> None:
        while len(self._peers) < MOST_PEERS:
            try:
                sock = self._connections.accept(self._listener, self._next_tag)
            except NotKeptError:
                self._accept_again = time.monotonic() + _PAUSE
                return
            if sock is None:
                return
            self._peers[self._next_tag] = Peer(sock, self._next_tag)
            self._next_tag += 1

    def _register(self, now: float) -> None:
        wanted: dict[int, tuple[int, Peer | None]] = {
            peer.fileno(): (peer.events, peer) for peer in self._peers.values() if peer.events
        }
        if now >= self._accept_again and len(self._peers) < MOST_PEERS:
            wanted[self._listener.fileno()] = (selectors.EVENT_READ, None)
        for key in list(self._selector.get_map().values()):
            if wanted.get(key.fd) != (key.events, key.data):
                self._selector.unregister(key.fd)
        for fd, (events, peer) in wanted.items():
            if fd not in self._selector.get_map():
                self._selector.register(fd, events, peer)

    def _serve(self, peer: Peer, events: int) -> None:
        if events & selectors.EVENT_READ and peer.received is None and not peer.finished:
            peer.look(vocabulary=self._vocabulary, length=self._length)
        else:
            peer.flush()

    def _admit(self) -> None:
        for peer in self._peers.values():
            slot = forward.free_slot(self._work.state, self._slots)
            if slot is None:
                return
            new = peer.received is not None and not (peer.finished or peer.gone or peer.dropped)
            if peer.received is not None and new and self._work.state.request(peer.tag) is None:
                wanted = peer.received.wanted
                request = Request(peer.tag, slot, wanted.tokens, wanted.max_tokens, wanted.seed)
                self._work.admit(request)
                peer.take_request()
                peer.write(http.answer(request))

    def _answer(self, id_: int, token: int) -> None:
        peer, request = self._peers.get(id_), self._work.state.request(id_)
        if peer is not None and request is not None:
            peer.finished = request.over
            peer.write(http.piece(len(request.tokens) - 1, token) + http.end(request))

    def _finish(self, now: float) -> None:
        over = []
        for tag, peer in list(self._peers.items()):
            peer.expire(now)
            if (peer.written_out or peer.gone) and not peer.dropped:
                peer.dropped = True
                self._connections.drop(tag)
                over.append(tag)
                if not peer.gone:
                    peer.finish()
            if peer.closed:
                peer.sock.close()
                del self._peers[tag]
        live = {request.id for request in self._work.state.requests}
        if live & set(over):
            self._work.forget([tag for tag in over if tag in live])
