"""Connections to a domain's public sockets until they are served: accepted, sorted by user, and dropped if too many."""

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from mpsguard.guard.broker.arrivals import Arrival, Arrivals
from mpsguard.guard.broker.connection_table import ConnectionTable
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.metrics.registry import Metrics, RefusalReason
from mpsguard.linux.descriptors.fd_closer import ForeignFdCloser
from mpsguard.linux.identity import Credentials
from mpsguard.linux.processes import peer_user
from mpsguard.linux.sockets import accepting
from mpsguard.linux.sockets.accepting import Acceptor

_ACCEPT_BATCH: Final = 128
"""Connections accepted in one turn of the event loop, some 2 ms in a flood: connections in service need turns of their
own, of which a handshake takes about five. The kernel's backlog is one queue for all users, so that a flood in it holds
up the others."""

_WAITING_OF_A_USER: Final = 1024
"""Connections of one user that are accepted and not served yet; each costs a descriptor."""

_MOST_OF_A_USER: Final = 2 * _WAITING_OF_A_USER
"""The same while others wait to be accepted: closing takes a fifth of the time that accepting and closing take."""

_WAITING: Final = 16384
"""Of all users together: a quarter of the descriptors that the unit allows (LimitNOFILE=)."""

_DROPPED_OF_A_USER: Final = 64
"""Connections of one user that have ended before they were served, and those that are too many, dropped in one turn:
some 9 us each, where serving one takes 150 us."""

_BLOCKED_PAUSE: Final = 0.02
"""Seconds until the next attempt when no user may have one more peer served."""

_OUT_OF_DESCRIPTORS_PAUSE: Final = 0.1
"""Seconds without accepting after the kernel had no descriptor left; peers wait in the backlog meanwhile."""


class _Listener(NamedTuple):
    """A public socket on which connections are accepted."""

    acceptor: Acceptor
    is_privileged: bool


class _Refuse(Protocol):
    def __call__(self, reason: RefusalReason, peer: Credentials, detail: str, count: int = 1) -> None:
        """Count and tell that so many connections like a peer's were refused."""


class Reception:
    """Owns the connections that are accepted and not served yet; the public directory owns the sockets themselves."""

    def __init__(
        self,
        name: str,
        connections: ConnectionTable,
        closer: ForeignFdCloser,
        *,
        admit: Callable[[Arrival], None],
        refuse: _Refuse,
        metrics: Metrics,
        events: EventStream,
    ) -> None:
        """Create it; `listen` starts it.

        Args:
            name: of the domain.
            connections: says which user may have one more served, and counts those that are being closed.
            closer: closes connections that descriptors may have come in.
            admit: serves an arrival, which is its own from then on.
            refuse: tells of arrivals that are dropped.
            metrics: counts them.
            events: receives failures of accepting.
        """
        self._name = name
        self._connections = connections
        self._closer = closer
        self._admit = admit
        self._refuse = refuse
        self._metrics = metrics
        self._events = events
        self._listening: dict[socket.socket, _Listener] = {}
        self._arrivals: Arrivals[Arrival] = Arrivals(_MOST_OF_A_USER, _WAITING)
        self._turns: asyncio.Handle | None = None
        """The next turn of the waiting arrivals, if there are any."""
        self._paused = False
        """Whether that turn comes after a pause, as no user with waiting arrivals may have one more peer."""
        self._is_behind = False
        """Whether more connections than were accepted last may wait in the kernel."""

    def listen(self, wanted: Mapping[socket.socket, bool]) -> None:
        """Accept connections on these sockets, and on no others; of each, whether it is the privileged one.

        Peers that wait at one that is no longer among them are served.
        """
        for sock in self._listening.keys() - wanted.keys():
            self._accept(self._listening.pop(sock))
            asyncio.get_running_loop().remove_reader(sock.fileno())
            self._is_behind = False
        for sock in wanted.keys() - self._listening.keys():
            self._listening[sock] = listener = _Listener(Acceptor(sock), wanted[sock])
            asyncio.get_running_loop().add_reader(sock.fileno(), self._accept, listener)

    def close(self) -> None:
        """Stop accepting, and close the arrivals that wait."""
        for sock in self._listening:
            asyncio.get_running_loop().remove_reader(sock.fileno())
        self._listening.clear()
        if self._turns is not None:
            self._turns.cancel()
        self._drop(self._arrivals.clear())

    def _accept(self, listener: _Listener) -> None:
        displaced: list[Arrival] = []
        self._is_behind = False
        for _ in range(_ACCEPT_BATCH):
            try:
                fd, peer = listener.acceptor.accept()
            except BlockingIOError:
                break
            except OSError as error:
                self._events.publish("accept_failed", self._name, detail=str(error))
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener.acceptor.listener.fileno())
                loop.call_later(_OUT_OF_DESCRIPTORS_PAUSE, self._accept_again, listener)
                break
            try:
                peer = peer_user.peer_of_accepted(fd, peer)
            except BaseException:
                os.close(fd)
                raise
            user = peer.user
            arrival = Arrival(fd, peer, user, listener.is_privileged, listener.acceptor.are_sealed)
            oldest = self._arrivals.add(user, arrival)
            if oldest is not None:
                displaced.append(oldest)
        else:
            self._is_behind = True
        if displaced:
            self._displace(displaced)
        if self._turns is None or self._paused:
            # Those that wait may not come yet; one that has just come may be another user's.
            self._turn()

    def _accept_again(self, listener: _Listener) -> None:
        sock = listener.acceptor.listener
        if self._listening.get(sock) is listener:
            asyncio.get_running_loop().add_reader(sock.fileno(), self._accept, listener)

    def _turn(self) -> None:
        """Serve one more peer of each user that may have one."""
        if self._turns is not None:
            self._turns.cancel()
        # Those that the kernel still holds wait behind each other, whichever user's; these can wait.
        dropped = not self._is_behind and self._drop_some()
        arrivals = self._arrivals.turn(self._connections.may_come)
        for arrival in arrivals:
            self._admit(arrival)
        loop = asyncio.get_running_loop()
        self._paused = False
        if not len(self._arrivals):
            self._turns = None
        elif arrivals or dropped or self._is_behind:
            self._turns = loop.call_soon(self._turn)
        else:
            self._paused = True
            self._turns = loop.call_later(_BLOCKED_PAUSE, self._turn)

    def _drop_some(self) -> bool:
        """Close some of the arrivals that will not be served, if there are any; return whether there were."""
        gone = self._arrivals.drop(lambda arrival: accepting.has_left(arrival.fd), _DROPPED_OF_A_USER)
        if gone:
            self._metrics.connections.labels(self._name).inc(len(gone))
            self._metrics.refused.labels(self._name, "hung_up").inc(len(gone))
            self._drop(gone)
        surplus = self._arrivals.surplus(_WAITING_OF_A_USER, _DROPPED_OF_A_USER)
        if surplus:
            self._displace(surplus)
        return bool(gone or surplus)

    def _displace(self, arrivals: Sequence[Arrival]) -> None:
        """Close arrivals of users that have too many of them."""
        peers = {arrival.user: arrival.peer for arrival in arrivals}
        for user, count in Counter(arrival.user for arrival in arrivals).items():
            told = f"{count} of too many connections of this user that wait"
            self._refuse("evicted", peers[user], told, count)
        self._drop(arrivals)

    def _drop(self, arrivals: Sequence[Arrival]) -> None:
        """Close arrivals that are not served, each user's together: a flood may bring hundreds in a turn."""
        by_user: dict[int, list[Arrival]] = {}
        for arrival in arrivals:
            if arrival.is_sealed or not accepting.takes_descriptors(arrival.fd):
                accepting.close(arrival.fd)
            else:
                by_user.setdefault(arrival.user, []).append(arrival)
        for user, of_user in by_user.items():
            closing = self._connections.closing(user, len(of_user))
            self._closer.close(user, tuple(arrival.fd for arrival in of_user), closing.give_back)
