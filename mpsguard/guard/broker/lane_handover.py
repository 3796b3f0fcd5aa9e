"""Handover of one client to its lane: parked until the lane is ready, with the levers of its class, relayed."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple

from mpsguard.guard.broker.admission import Admission
from mpsguard.guard.broker.class_admission import ClassAdmission
from mpsguard.guard.broker.handshake import Introduction, RefusedError
from mpsguard.guard.broker.lane_router import LaneRouter
from mpsguard.guard.broker.parking import Parking
from mpsguard.guard.broker.relay import LaneGoneError, OtherGreetingError, Relay
from mpsguard.guard.config import Policy
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.lanes import lane_state, mps_protocol
from mpsguard.guard.lanes.acknowledger import Acknowledger
from mpsguard.guard.lanes.command import CommandFailedError
from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.lanes.lane_set import LaneSet
from mpsguard.guard.lanes.levers import NONE, LeverError
from mpsguard.guard.lanes.mps_protocol import PeerKind
from mpsguard.guard.lanes.server_start import ServerStart
from mpsguard.guard.lanes.service_watch import ServiceAttempt
from mpsguard.guard.metrics.registry import Metrics
from mpsguard.linux.identity import Credentials
from mpsguard.linux.sockets.packet_stream import PacketStream
from mpsguard.linux.tasks import beside, end_tasks

_Relay = Callable[[Callable[[], None]], Coroutine[Any, Any, None]]
"""Relays a connection, and calls its argument once the lane has answered."""


class ArrivedClient(NamedTuple):
    """A client in its handshake."""

    front: PacketStream
    """Its connection."""
    introduction: Introduction
    """Its credentials and kind."""
    admission: Admission
    """Enters it."""
    privileged: bool
    """Whether it came to the privileged socket."""
    began: float
    """Loop time of its connection."""
    finished: Callable[[], None]
    """Called when it has its socket."""


class LaneHandover:
    """Hands the clients of one public directory over."""

    def __init__(
        self,
        name: str,
        policy: Policy,
        lanes: LaneSet,
        router: LaneRouter,
        *,
        parking: Parking,
        classes: ClassAdmission | None,
        impersonate: bool,
        metrics: Metrics,
        events: EventStream,
    ) -> None:
        """Create it.

        Args:
            name: of the domain.
            policy: the domain's deadlines.
            lanes: the domain's lanes.
            router: chooses one of ``lanes`` for each client.
            parking: where clients wait for their lane.
            classes: assigns service classes; None in a domain without any.
            impersonate: whether clients are introduced as themselves.
            metrics: measures the time.
            events: receives clients that are turned away, and classes that could not be applied.
        """
        self._name = name
        self._policy = policy
        self._lanes = lanes
        self._router = router
        self._parking = parking
        self._classes = classes
        self._impersonate = impersonate
        self._metrics = metrics
        self._events = events
        self._servers = ServerStart()
        self._acknowledger = Acknowledger()

    def open(self) -> None:
        """Start what hands over; raise OSError."""
        self._acknowledger.open()

    def close(self) -> None:
        """End what has been started; no client is being handed over any more."""
        self._acknowledger.close()

    def configure(self, policy: Policy) -> None:
        """Use another policy, for clients that come from now on."""
        self._policy = policy

    async def run(self, client: ArrivedClient, *, reads_first: bool) -> None:
        """Bring a client to a lane.

        Args:
            client: in its handshake.
            reads_first: whether it must be known before it comes to a lane.

        Raises:
            RefusedError: it broke the protocol, left, or may not come.
        """
        admission = client.admission
        await self._router.admit(admission)
        program = await admission.program() if reads_first or self._router.routes_by_program else None
        if self._classes is not None:
            await self._classes.assign(admission)
        due = client.began + self._policy.park_deadline
        choose = partial(self._router.for_client, admission.key, admission.sender, program)
        since = asyncio.get_running_loop().time()
        counts = client.introduction.kind is PeerKind.CLIENT
        while True:
            with choose().service.attempt(admission.sender, since, counts=counts):
                admits = await self._parking.wait(client.front, admission.sender, due, choose, self._lanes)
            lane = choose()
            with lane.service.attempt(admission.sender, since, counts=counts) as attempt:
                relay = partial(self._relay, client, lane, attempt)
                try:
                    async with lane.turns.turn(admission.sender.user) as answered:
                        if admits and not (choose() is lane and lane_state.admits(lane.report.state)):
                            # That changed while it waited for its turn.
                            continue
                        if self._classes is not None:
                            await self._relay_with(admission, lane, relay, answered)
                        else:
                            await relay(answered)
                    return
                except (LaneGoneError, OtherGreetingError, OSError) as error:
                    # A refusal by the lane itself (it could not start a server, say) is final for the client. If the
                    # control daemon has died, the client gets another attempt.
                    another = isinstance(error, OtherGreetingError) or await lane.has_died()
                    if asyncio.get_running_loop().time() >= due or not another:
                        self._turned_away(admission.sender, lane, attempt, error)
                        return

    def _turned_away(self, client: Credentials, lane: Lane, attempt: ServiceAttempt, error: Exception) -> None:
        if isinstance(error, LaneGoneError) and lane.control_alive():
            attempt.turned_away()
            lane.look_at_service()
        self._metrics.turned_away.labels(self._name).inc()
        detail = str(error) or "by the lane"
        self._events.publish("client_turned_away", self._name, user=client.user, pid=client.pid, detail=detail)

    async def _relay(
        self, client: ArrivedClient, lane: Lane, attempt: ServiceAttempt, answered: Callable[[], None]
    ) -> None:
        """Relay a client to a lane until both sides are done; ``answered`` and errors as in `Relay.run`."""

        def greeted(word: bytes) -> None:
            # The lane may have come back with another driver version.
            lane.greeting = mps_protocol.check_greeting(word)

        def captured() -> None:
            if not self._router.may_have(client.admission.key, lane):
                raise RefusedError("other_lane", f"it has come to another lane than {lane.spec.name} at the same time")
            answered()

        def handed_over() -> None:
            attempt.handed_over()
            client.admission.enter(lane.spec.name)
            self._router.connected(client.admission.key, lane.spec.name)
            client.finished()
            waited = asyncio.get_running_loop().time() - client.began
            self._metrics.relay_seconds.labels(self._name).observe(waited)

        with await lane.connect(client.privileged) as back:
            # Known since the lane's start, without which there is no lane to choose.
            expected = lane.greeting or client.introduction.greeting
            relay = Relay(
                client.front, back, client.introduction, expected, self._acknowledger, impersonate=self._impersonate
            )
            await relay.run(greeted, captured, handed_over)

    async def _relay_with(self, admission: Admission, lane: Lane, relay: _Relay, answered: Callable[[], None]) -> None:
        """Relay with levers set until the lane has answered; without them if they cannot be set.

        A client without levers waits as well: while another one's are set, it would get those.
        """
        sender = admission.sender
        running: asyncio.Task[None] | None = None
        try:
            try:
                server = await self._servers.server(lane, self._policy.start_deadline)
                async with lane.levers.moved(server, admission.levers, sender.user):
                    running = await self._until_captured(relay, answered)
            except (LeverError, CommandFailedError) as error:
                if admission.levers:
                    self._metrics.class_failures.labels(self._name).inc()
                    told = {"lane": lane.spec.name, "pid": sender.pid, "detail": str(error)}
                    self._events.publish("class_not_applied", self._name, user=sender.user, **told)
                if running is None:
                    admission.levers = NONE
                    running = asyncio.create_task(relay(answered))
            await running
        finally:
            if running is not None:
                await end_tasks((running,))

    async def _until_captured(self, relay: _Relay, answered: Callable[[], None]) -> asyncio.Task[None]:
        """Start relaying, and return the task once the lane has answered, or the task has failed."""
        captured = asyncio.Event()

        def on_captured() -> None:
            answered()
            captured.set()

        running = asyncio.create_task(relay(on_captured))
        deadline = self._policy.start_deadline
        try:
            async with beside(captured.wait()) as (waiting,):
                done, _ = await asyncio.wait({running, waiting}, timeout=deadline, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise LaneGoneError(f"no answer within {deadline:g} s")
        except BaseException:
            # The daemon waits for this connection's next word, and would not take the command that puts the levers
            # back.
            await end_tasks((running,))
            raise
        return running
