"""The broker of one domain: accepts connections to the public sockets, parks clients, and relays them to a lane."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final

from mpsguard.guard.broker.admission import Admission
from mpsguard.guard.broker.arrivals import Arrival
from mpsguard.guard.broker.class_admission import ClassAdmission
from mpsguard.guard.broker.client_table import ClientTable
from mpsguard.guard.broker.connection_table import ConnectionTable
from mpsguard.guard.broker.handshake import Introduction, RefusedError, introduce
from mpsguard.guard.broker.lane_handover import ArrivedClient, LaneHandover
from mpsguard.guard.broker.lane_router import LaneRouter
from mpsguard.guard.broker.parking import Parking
from mpsguard.guard.broker.reception import Reception
from mpsguard.guard.broker.ui_sessions import UiSessions
from mpsguard.guard.config import Policy
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.lanes.lane_set import LaneSet
from mpsguard.guard.lanes.mps_protocol import PeerKind
from mpsguard.guard.metrics.registry import Metrics, RefusalReason
from mpsguard.linux.descriptors.fd_closer import ForeignFdCloser
from mpsguard.linux.identity import Credentials, UserKey, is_root
from mpsguard.linux.processes.process import ProcessHandle, open_pidfd
from mpsguard.linux.sockets import accepting, seqpacket
from mpsguard.linux.sockets.packet_stream import PacketStream, StrangerStream
from mpsguard.linux.sockets.user_turns import UserTurns
from mpsguard.linux.tasks import report_defect
from mpsguard.linux.user_budget import UserBudget

MAX_CLIENTS_OF_A_USER: Final = 512
"""Clients of a user other than root: eight GPUs have 480 MPS clients at most. Each costs some three descriptors, and
0.02 % of a core."""

_PUBLISHED_REFUSALS: Final = (20, 1.0)
"""Refusals of one user published as events: so many at once, and again in so many seconds. All are counted."""

_DRAIN: Final = 2.0
"""Seconds that an orderly stop leaves to handshakes in progress, of the five in which the guard ends."""


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
        self._readiness = UserTurns()
        self._closer = ForeignFdCloser()
        self._reception = Reception(
            name,
            self._connections,
            self._closer,
            admit=self._admit,
            refuse=self._refuse,
            metrics=metrics,
            events=events,
        )
        self._refusals: UserBudget[int] = UserBudget(*_PUBLISHED_REFUSALS)
        self.parking = Parking(name, policy, metrics=metrics, events=events)
        self.ui_sessions = UiSessions(name, policy, lanes, router, events=events)
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
        self._reception.listen({sock: name == "control_privileged" for name, sock in listeners})

    async def close(self) -> None:
        """Stop accepting, give handshakes in progress a few seconds to finish, and end the rest."""
        self._reception.close()
        try:
            await self._connections.close(_DRAIN)
        finally:
            self._handover.close()

    def _admit(self, arrival: Arrival) -> None:
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
