"""The broker of one domain: accepts connections to the public sockets, parks clients, and relays them to a lane."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final

import msgspec

from mpsguard.guard.broker.admission import Admission
from mpsguard.guard.broker.arrivals import Arrivals
from mpsguard.guard.broker.class_admission import ClassAdmission
from mpsguard.guard.broker.client_table import ClientTable
from mpsguard.guard.broker.connection_table import ConnectionTable
from mpsguard.guard.broker.handshake import Introduction, RefusedError, introduce
from mpsguard.guard.broker.lane_handover import ArrivedClient, LaneHandover
from mpsguard.guard.broker.lane_router import LaneRouter
from mpsguard.guard.broker.parking import Parking
from mpsguard.guard.broker.ui_sessions import UiSessions
from mpsguard.guard.config import Policy
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.lanes.lane_set import LaneSet
from mpsguard.guard.lanes.mps_protocol import PeerKind
from mpsguard.guard.metrics.registry import Metrics, RefusalReason
from mpsguard.linux.descriptors.fd_closer import ForeignFdCloser
from mpsguard.linux.identity import Credentials, UserKey, is_root
from mpsguard.linux.processes import peer_user
from mpsguard.linux.processes.process import ProcessHandle, open_pidfd
from mpsguard.linux.sockets import accepting, seqpacket
from mpsguard.linux.sockets.packet_stream import PacketStream, StrangerStream
from mpsguard.linux.sockets.user_turns import UserTurns
from mpsguard.linux.tasks import report_defect
from mpsguard.linux.user_budget import UserBudget

_ACCEPT_BATCH: Final = 512
"""Connections accepted in one turn of the event loop, some 5 ms: connections in service need turns of their own. The
kernel's backlog is one queue for all users, so that a flood in it holds up the others."""

_WAITING_OF_A_USER: Final = 1024
"""Connections of one user that are accepted and not served yet; each costs a descriptor."""

_WAITING: Final = 16384
"""Of all users together: a quarter of the descriptors that the unit allows (LimitNOFILE=)."""

MAX_CLIENTS_OF_A_USER: Final = 512
"""Clients of a user other than root: eight GPUs have 480 MPS clients at most. Each costs some three descriptors, and
0.02 % of a core."""

_DROPPED_OF_A_USER: Final = 64
"""Connections of one user that have ended before they were served, dropped in one turn: some 9 us each, where serving
one takes 150 us."""

_BLOCKED_PAUSE: Final = 0.02
"""Seconds until the next attempt when no user may have one more peer served."""

_OUT_OF_DESCRIPTORS_PAUSE: Final = 0.1
"""Seconds without accepting after the kernel had no descriptor left; peers wait in the backlog meanwhile."""

_PUBLISHED_REFUSALS: Final = (20, 1.0)
"""Refusals of one user published as events: so many at once, and again in so many seconds. All are counted."""

_DRAIN: Final = 3.0
"""Seconds that an orderly stop leaves to handshakes in progress, of the five in which the guard ends."""


class _Arrival(msgspec.Struct, frozen=True, gc=False):
    """An accepted peer that is not served yet: a user's flood costs accepting and nothing more."""

    fd: int
    """Of the connection: whatever takes the arrival out of its queue closes it or serves it."""
    peer: Credentials
    user: UserKey
    privileged: bool


class Broker:
    """Owns the connections on a domain's public sockets; the public directory owns the sockets themselves."""

    def __init__(
        self,
        name: str,
        policy: Policy,
        lanes: LaneSet,
        router: LaneRouter,
        known: ClientTable,
        *,
        metrics: Metrics,
        events: EventStream,
        unwatchable: Callable[[ProcessHandle], Awaitable[str]] | None = None,
        classes: ClassAdmission | None = None,
    ) -> None:
        """Create the broker; `listen` starts it.

        Args:
            name: of the domain.
            policy: the domain's limits and deadlines.
            lanes: the domain's lanes.
            router: chooses one of ``lanes`` for each peer.
            known: the domain's clients.
            metrics: counts connections and refusals.
            events: receives refusals and parkings.
            unwatchable: returns why a known client cannot be watched, or "". None if such clients are admitted.
            classes: assigns service classes; None in a domain without any.
        """
        self._name = name
        self._policy = policy
        self._lanes = lanes
        self._router = router
        self._clients = known
        self._metrics = metrics
        self._events = events
        self._unwatchable = unwatchable
        self._connections = ConnectionTable(policy.max_connections)
        self._arrivals: Arrivals[_Arrival] = Arrivals(_WAITING_OF_A_USER, _WAITING)
        self._turns: asyncio.Handle | None = None
        """The next turn of the waiting arrivals, if there are any."""
        self._paused = False
        """Whether that turn comes after a pause, as no user with waiting arrivals may have one more peer."""
        self._readiness = UserTurns()
        self._closer = ForeignFdCloser()
        self._refusals: UserBudget[int] = UserBudget(*_PUBLISHED_REFUSALS)
        self.parking = Parking(name, policy, metrics=metrics, events=events)
        self.ui_sessions = UiSessions(name, policy, lanes, router, events=events)
        self._listening: dict[socket.socket, bool] = {}
        """Whether each is the privileged one."""
        self.impersonates = seqpacket.may_impersonate()
        """Whether the guard sends with the peers' credentials; without the privileges, it sends with its own."""
        self._handover = LaneHandover(
            name,
            policy,
            lanes,
            router,
            parking=self.parking,
            classes=classes,
            impersonate=self.impersonates,
            metrics=metrics,
            events=events,
        )

    def configure(self, policy: Policy, unwatchable: Callable[[ProcessHandle], Awaitable[str]] | None) -> None:
        """Use another policy, for connections that come from now on; ``unwatchable`` as at the start."""
        self._policy = policy
        self._unwatchable = unwatchable
        self._connections.set_limit(policy.max_connections)
        self.parking.configure(policy)
        self.ui_sessions.configure(policy)
        self._handover.configure(policy)

    def open(self) -> None:
        """Start what hands clients over, before any comes; raise OSError."""
        self._handover.open()

    def listen(self, listeners: Iterable[tuple[str, socket.socket]]) -> None:
        """Accept connections on sockets with the names ``control`` and ``control_privileged``, and on no others.

        Peers that wait at one that is no longer among them are served.
        """
        wanted = {sock: name == "control_privileged" for name, sock in listeners}
        for sock in self._listening.keys() - wanted.keys():
            self._accept(sock, self._listening[sock])
            asyncio.get_running_loop().remove_reader(sock.fileno())
        for sock in wanted.keys() - self._listening.keys():
            asyncio.get_running_loop().add_reader(sock.fileno(), self._accept, sock, wanted[sock])
        self._listening = wanted

    async def close(self) -> None:
        """Stop accepting, give handshakes in progress a few seconds to finish, and end the rest."""
        for sock in self._listening:
            asyncio.get_running_loop().remove_reader(sock.fileno())
        self._listening.clear()
        if self._turns is not None:
            self._turns.cancel()
        self._drop(self._arrivals.clear())
        try:
            await self._connections.close(_DRAIN)
        finally:
            self._handover.close()

    def _accept(self, listener: socket.socket, privileged: bool) -> None:
        loop = asyncio.get_running_loop()
        displaced: dict[int, list[_Arrival]] = {}
        for _ in range(_ACCEPT_BATCH):
            try:
                fd = accepting.accept(listener)
            except BlockingIOError:
                break
            except OSError as error:
                self._events.publish("accept_failed", self._name, detail=str(error))
                loop.remove_reader(listener.fileno())
                loop.call_later(_OUT_OF_DESCRIPTORS_PAUSE, self._accept_again, listener, privileged)
                break
            try:
                peer = peer_user.peer_of_accepted(fd)
            except BaseException:
                os.close(fd)
                raise
            user = peer.user
            oldest = self._arrivals.add(user, _Arrival(fd, peer, user, privileged))
            if oldest is not None:
                displaced.setdefault(oldest.user, []).append(oldest)
        for of_user in displaced.values():
            count = len(of_user)
            told = f"{count} of too many connections of this user that wait"
            self._refuse("evicted", of_user[0].peer, told, count)
            self._drop(of_user)
        if self._turns is None or self._paused:
            # Those that wait may not come yet; one that has just come may be another user's.
            self._turn()

    def _accept_again(self, listener: socket.socket, privileged: bool) -> None:
        if listener in self._listening:
            asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener, privileged)

    def _turn(self) -> None:
        """Serve one more peer of each user that may have one."""
        if self._turns is not None:
            self._turns.cancel()
        gone = self._arrivals.drop(lambda arrival: accepting.has_left(arrival.fd), _DROPPED_OF_A_USER)
        if gone:
            self._metrics.connections.labels(self._name).inc(len(gone))
            self._metrics.refused.labels(self._name, "hung_up").inc(len(gone))
            self._drop(gone)
        arrivals = self._arrivals.turn(self._connections.may_come)
        for arrival in arrivals:
            self._admit(arrival)
        loop = asyncio.get_running_loop()
        self._paused = False
        if not len(self._arrivals):
            self._turns = None
        elif arrivals or gone:
            self._turns = loop.call_soon(self._turn)
        else:
            self._paused = True
            self._turns = loop.call_later(_BLOCKED_PAUSE, self._turn)

    def _drop(self, arrivals: Sequence[_Arrival]) -> None:
        """Close arrivals that are not served, each user's together: a flood may bring hundreds in a turn."""
        by_user: dict[int, list[_Arrival]] = {}
        for arrival in arrivals:
            # Not to be asked of the listener: a peer that connected before it was set up may have sent descriptors.
            if accepting.takes_descriptors(arrival.fd):
                by_user.setdefault(arrival.user, []).append(arrival)
            else:
                accepting.close(arrival.fd)
        for user, of_user in by_user.items():
            closing = self._connections.closing(user, len(of_user))
            self._closer.close(user, tuple(arrival.fd for arrival in of_user), closing.give_back)

    def _admit(self, arrival: _Arrival) -> None:
        peer = arrival.peer
        self._metrics.connections.labels(self._name).inc()
        closing = ExitStack()
        sock = accepting.as_socket(arrival.fd)
        front = StrangerStream(sock, peer, self._readiness, self._closer, closing.close)

        def over(_: asyncio.Task[None] | None = None) -> None:
            # It keeps a place of its user's until it is fully closed.
            closing.enter_context(self._connections.closing(peer.user))
            front.close()

        try:
            victim = self._connections.make_room(peer.user)
        except LookupError as error:
            over()
            self._refuse("evicted", peer, str(error))
            return
        if victim is not None:
            self._connections.evict(victim)
            self._refuse("evicted", peer, "a silent connection made room for this peer's")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        greeting = self._router.now().greeting
        if greeting is not None:
            # Here, not in the task: by its first step, in the next pass of the loop, the peer may have answered.
            with suppress(OSError):  # one that has left is noticed as it is read
                front.send_now(greeting)
        task = asyncio.create_task(self._serve(front, peer, arrival.privileged, greeting))
        # Not in the task itself: a task that is evicted before its first turn never runs.
        task.add_done_callback(over)
        self._connections.add(task, peer.user)

    async def _serve(self, front: PacketStream, peer: Credentials, privileged: bool, greeting: bytes | None) -> None:
        """Serve one connection to its end; ``greeting``: as it was greeted. Its failures end here."""
        gauge = self._metrics.open_connections.labels(self._name)
        gauge.inc()
        try:
            await self._converse(front, privileged, greeting)
        except RefusedError as error:
            self._refuse(error.reason, peer, str(error))
        except Exception as error:  # one peer's failure must not become the guard's
            if not isinstance(error, OSError):  # of its connection or the lane's, or no lane in time
                report_defect("broker", error)
            self._refuse("failed", peer, f"{type(error).__name__}: {error}")
        finally:
            gauge.dec()

    async def _converse(self, front: PacketStream, privileged: bool, greeting: bytes | None) -> None:
        deadline = self._policy.handshake_deadline
        began = asyncio.get_running_loop().time()
        if greeting is None:
            # A lane that never came up: its greeting is not known yet.
            async with asyncio.timeout(self._policy.park_deadline):
                await self._lanes.admitting(self._router.now)
            greeting = self._router.now().greeting
            if greeting is None:
                raise RefusedError("failed", "the lane's control daemon has yet to be seen")
            with suppress(OSError):
                await front.send(greeting)
        introduction = await introduce(front, greeting, deadline)
        if introduction is None:
            self._metrics.handshakes.labels(self._name, "probe").inc()
            return
        task = asyncio.current_task()
        assert task is not None
        self._connections.mark_active(task)
        if not self.impersonates and introduction.sender.user != os.geteuid():
            raise RefusedError("foreign_user", f"uid {introduction.sender.uid} needs a guard with privileges")
        if introduction.kind is PeerKind.UI:
            await self.ui_sessions.serve(
                front,
                introduction,
                privileged=privileged,
                impersonate=self.impersonates,
                idles=partial(self._idles, task),
            )
        else:
            await self._serve_client(front, introduction, privileged, began)
        self._metrics.handshakes.labels(self._name, introduction.kind.name.lower()).inc()

    def _idles(self, task: asyncio.Task[None], idle: bool) -> None:
        """Mark a UI session as idle or busy: an idle one may be evicted for another peer."""
        if idle:
            self._connections.mark_idle(task)
        else:
            self._connections.mark_active(task)

    async def _serve_client(
        self, front: PacketStream, introduction: Introduction, privileged: bool, began: float
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        handle = await self._open_handle(front, introduction)
        try:
            self._check_share(handle, introduction.sender.user)
            await self._check_watched(handle)
        except BaseException:
            handle.close()
            raise
        admission = Admission(self._clients, self._name, handle, introduction.sender)
        try:
            finished = partial(self._connections.mark_idle, task)
            client = ArrivedClient(front, introduction, admission, privileged, began, finished)
            # If clients that cannot be watched are refused, a client must be known before it connects for a context.
            await self._handover.run(client, reads_first=self._unwatchable is not None)
        finally:
            admission.close()

    def _check_share(self, handle: ProcessHandle, user: UserKey) -> None:
        """A known client may always come again."""
        if is_root(user) or self._clients.get(handle.key) is not None:
            return
        if self._clients.of_user(user) >= MAX_CLIENTS_OF_A_USER:
            raise RefusedError("share", f"user {user} has {MAX_CLIENTS_OF_A_USER} clients in this domain")

    async def _check_watched(self, handle: ProcessHandle) -> None:
        """Refuse a client that cannot be watched.

        The first connection identifies a client. It is checked from the second on, which is for a context: by then
        CUDA has its address space.
        """
        if self._unwatchable is None:
            return
        if self._clients.get(handle.key) is not None:
            why = await self._unwatchable(handle)
        else:
            why = "its first connection is not over" if handle.key in self._clients.entering else ""
        if why:
            raise RefusedError("unwatched", f"a client that cannot be watched: {why}")

    async def _open_handle(self, front: PacketStream, introduction: Introduction) -> ProcessHandle:
        sender = introduction.sender
        try:
            pidfd = front.peer_pidfd()
            return await self._clients.hold(open_pidfd(sender.pid) if pidfd is None else pidfd, sender.pid, sender.user)
        except ProcessLookupError:
            raise RefusedError("hung_up", "ended after its credentials") from None
        except TimeoutError as error:
            # It is about to execute another program, or others of its user keep all its readers.
            raise RefusedError("unidentified", str(error)) from None

    def _refuse(self, reason: RefusalReason, peer: Credentials, detail: str, count: int = 1) -> None:
        self._metrics.refused.labels(self._name, reason).inc(count)
        if self._refusals.take(peer.user, asyncio.get_running_loop().time()):
            told = {"reason": reason, "detail": detail, "pid": peer.pid, "uid": peer.uid}
            self._events.publish("connection_refused", self._name, user=peer.user, **told)
