"""Parking: clients of a lane that is not ready wait, instead of getting error 807 or running without MPS."""

import asyncio
from collections.abc import Callable
from typing import Final

from mpsguard.guard.broker.handshake import RefusedError, gone
from mpsguard.guard.config import Policy
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.lanes.lane_set import LaneSet
from mpsguard.guard.metrics.registry import Metrics
from mpsguard.linux.identity import Credentials
from mpsguard.linux.sockets.packet_stream import PacketStream
from mpsguard.linux.tasks import beside
from mpsguard.linux.user_queue import UserQueue

_NOT_YET_PARKED: Final = 0.1
"""Seconds for the lane to become ready before its client counts as parked."""


class Parking:
    """Holds back the clients of one domain, up to the policy's number and time."""

    def __init__(self, name: str, policy: Policy, *, metrics: Metrics, events: EventStream) -> None:
        self._name = name
        self._limit = policy.max_parked
        self._metrics = metrics
        self._events = events
        self.count = 0
        """Clients held back now."""
        self._parked: UserQueue[int, asyncio.Future[None]] = UserQueue()
        """Clients that need not give way; the future of one that must is done."""

    def configure(self, policy: Policy) -> None:
        """Use another policy; for clients that are not held back yet."""
        self._limit = policy.max_parked

    async def wait(
        self, front: PacketStream, peer: Credentials, due: float, choose: Callable[[], Lane], lanes: LaneSet
    ) -> bool:
        """Wait until the lane that ``choose`` returns admits clients, or the client may be held back no longer.

        Args:
            front: the connection to the client.
            peer: the client.
            due: when to stop waiting, by the event loop's clock. If too many clients are parked, it does not wait.
            choose: returns the lane for the client at the time of the call.
            lanes: the lanes that ``choose`` chooses from.

        Returns:
            Whether the lane admits clients.

        Raises:
            RefusedError: the client left meanwhile.
        """
        if choose().admits_now():
            return True
        async with beside(lanes.admitting(choose), gone(front)) as (ready, left):
            await asyncio.wait({ready, left}, timeout=_NOT_YET_PARKED, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done() and not left.done():
                await self._park(ready, left, peer, due, choose)
            if left.done() and not ready.done():
                raise RefusedError("hung_up", "left while it was parked")
            return ready.done()

    async def _park(
        self,
        ready: asyncio.Task[None],
        left: asyncio.Task[None],
        peer: Credentials,
        due: float,
        choose: Callable[[], Lane],
    ) -> None:
        pid = peer.pid
        if self.count >= self._limit and not self._make_room(peer.user):
            self._metrics.parked.labels(self._name, "too_many").inc()
            self._events.publish("parking_full", self._name, user=peer.user, pid=pid, parked=self.count)
            return
        displaced = asyncio.get_running_loop().create_future()
        place = self._parked.add(peer.user, displaced)
        self._change(1)
        try:
            state = choose().report.state.value
            self._events.publish("client_parked", self._name, user=peer.user, pid=pid, lane_state=state)
            patience = max(due - asyncio.get_running_loop().time(), 0)
            await asyncio.wait({ready, left, displaced}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            outcome = "ready" if ready.done() else "left" if left.done() else "deadline"
            if displaced.done() and outcome == "deadline":
                outcome = "too_many"
            self._metrics.parked.labels(self._name, outcome).inc()
            self._events.publish("client_unparked", self._name, user=peer.user, pid=pid, outcome=outcome)
        finally:
            self._change(-1)
            self._parked.withdraw(place)

    def _make_room(self, uid: int) -> bool:
        """Let the last client of the user that has most of them give way, if ``uid`` has fewer."""
        if not len(self._parked):
            return False
        heaviest = self._parked.heaviest()
        if self._parked.of(heaviest) <= self._parked.of(uid) + 1:
            return False
        self._parked.pop_last(heaviest).set_result(None)
        return True

    def _change(self, by: int) -> None:
        self.count += by
        self._metrics.parking.labels(self._name).set(self.count)
