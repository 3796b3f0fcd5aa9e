"""Second driver watch: follows the second drivers of one domain's clients, from their claims to the old lane's end."""

import asyncio
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from mpsguard.guard.broker import class_admission
from mpsguard.guard.broker.lowered_shares import ClassCeilings, ProgramShares
from mpsguard.guard.broker.second_claims import SecondClaims
from mpsguard.guard.broker.second_drivers import SecondDrivers
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.control_api.messages.clients import Survival
from mpsguard.guard.evidence import (
    Evidence,
    Observation,
    SecondDriverCame,
    Source,
    Trust,
    WentOver,
    WorkRepeated,
)
from mpsguard.guard.incidents import lane_release
from mpsguard.guard.incidents.domain_view import DomainView
from mpsguard.guard.incidents.lane_release import Remaining
from mpsguard.guard.incidents.program_moves import ProgramMoves
from mpsguard.guard.incidents.repetition_watch import RepetitionWatch
from mpsguard.guard.incidents.sensor_hub import SensorHub
from mpsguard.guard.incidents.server_end import end_servers
from mpsguard.guard.lanes.command import CommandFailedError
from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.metrics.registry import Metrics
from mpsguard.guard.model import Client, LaneReport, LaneState
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.preload.second_claim import ClaimPhase, RepetitionState, SecondClaim

_PAUSE: Final = 1.0
"""Seconds between two looks at a faulted lane from which clients have gone over."""
_SAID_WITHIN: Final = 2.0
"""Seconds for a look at what a client says, while it waits for its next driver."""
_PAUSE_FAILED: Final = 10.0
"""The same after its server could not be told to end."""


_NO_OTHER_LANE: Final = "no_other_lane"
"""Reason: the domain has one lane, or `second_driver` is off."""
_SECOND_LOST: Final = "second_lost"
"""Reason: the second driver was made beforehand, and its lane has faulted since."""


def survival(
    client: Client, claim: SecondClaim | None, *, other_lane: bool, second_lost: bool, alone: bool = False
) -> Survival | None:
    """Return whether a client would live through an SM fault of its lane; None for one without a second driver. Pure.

    Args:
        client: the client.
        claim: what it says.
        other_lane: whether there is a lane for its second driver.
        second_lost: whether its second driver was on a lane that has faulted.
        alone: whether it repeats work that it lost.
    """
    if alone and claim is not None and claim.repetition is RepetitionState.UNDER_WAY:
        return Survival("repeats alone", "")
    if claim is None:
        return Survival("unknown", "") if client.second_driver is not None else None
    if not other_lane:
        return Survival("no", _NO_OTHER_LANE)
    if second_lost:
        return Survival("no", _SECOND_LOST)
    if claim.may_go_over:
        return Survival("yes", "")
    # That it went over, and the guard does not know of it, is no answer.
    return Survival("no", claim.reason) if claim.reason else Survival("unknown", "")


class SecondDriverWatch:
    """Owns what is known of a domain's second drivers, and of what its clients say of them."""

    def __init__(
        self,
        domain: DomainView,
        shares: ProgramShares,
        ceilings: ClassCeilings,
        path: Path,
        *,
        events: EventStream,
        metrics: Metrics,
    ) -> None:
        """Create it.

        Args:
            domain: the domain.
            shares: of single programs.
            ceilings: what objectives leave to classes.
            path: where second drivers are remembered.
            events: receives takeovers and refusals.
            metrics: counts them.
        """
        self._domain = domain
        self._events = events
        self._metrics = metrics
        self.drivers = SecondDrivers(
            domain.name,
            domain.lanes,
            domain.clients,
            path,
            all_ahead=domain.settings.second_driver == "hot",
            levers=lambda client: class_admission.levers_again(client, domain.settings.classes, shares, ceilings),
            connected=self._connected,
            said=self._said,
            verdicts=domain,
            events=events,
        )
        self.moves = ProgramMoves(domain, self.drivers, ceilings, events)
        self._repetitions = RepetitionWatch(domain, self._repeated, events=events, metrics=metrics)
        self._claims: SecondClaims | None = None
        self._sensors: SensorHub | None = None
        self._prompted = asyncio.Event()
        self._faulted_at: dict[str, float] = {}
        """When each lane that is in FAULT was seen to be, on the monotonic clock."""

    def open(self, sensors: SensorHub) -> None:
        """Begin to look at clients; in a running event loop, before the first one comes."""
        self._sensors = sensors
        self._claims = SecondClaims(self._claimed, self.moves.answered)
        self.moves.open(self._claims)

    async def close(self) -> None:
        """Give everything back; what is known is on disk then."""
        await self.moves.close()
        if self._claims is not None:
            self._claims.close()
        await self.drivers.saved()

    def client_came(self, client: Client, handle: ProcessHandle) -> None:
        """Take note of a client that came, or was found."""
        if self._claims is not None and (client.second_driver or client.second_lane):
            self._claims.watch(handle, client.user)
        # Found by a guard that has just started: triage has to know it, too, and its old lane may wait for its end.
        if client.second_lane is not None:
            self._is_on(client, client.second_lane)
        self._prompted.set()

    def client_ended(self, client: Client) -> None:
        """Let go of a client that has ended."""
        lost_at = self.drivers.lost_at(client) if self.drivers.may_be_refused(client) else None
        before = self._repetitions.forget(client.process)
        self.moves.ended(client.process)
        if self._claims is not None:
            times = self.drivers.times(client.process)
            self._claims.ended(client.process, partial(self._last_word, client, lost_at, before, times))
        self.drivers.ended(client.process)
        self._domain.culprits.discard(client.process)
        self._domain.innocents.pop(client.process, None)
        self._prompted.set()

    def lane_changed(self, report: LaneReport) -> None:
        """Take note of a lane's state."""
        if report.state is not LaneState.FAULT:
            self._faulted_at.pop(report.name, None)
        else:
            self._faulted_at[report.name] = time.monotonic()
            self.drivers.faulted(report.name)
            for client in self._domain.clients.all():
                if client.lane == report.name:
                    self._hurry(client)
        self._prompted.set()

    def claim(self, process: ProcessKey) -> SecondClaim | None:
        """Return what a client says of its second driver; None if it says nothing."""
        return self._claims.of(process) if self._claims is not None else None

    def survival(self, client: Client) -> Survival | None:
        """Return whether a client would live through an SM fault; None for one without a second driver."""
        other_lane = self._domain.lanes.spare is not None and self._domain.settings.second_driver != "off"
        without = self.drivers.has_lost_second(client.process)
        claim, alone = self.claim(client.process), self._domain.is_alone(client.process)
        return survival(client, claim, other_lane=other_lane, second_lost=without, alone=alone)

    async def run(self) -> None:
        """End the servers of faulted lanes that nothing needs any more, until cancelled."""
        while True:
            self._prompted.clear()
            pause = None
            for lane in self._domain.lanes.all:
                if lane.report.state is LaneState.FAULT and self._holds(lane):
                    pause = max(pause or 0.0, await self._release(lane))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._prompted.wait()

    def _hurry(self, client: Client) -> None:
        if self._claims is None:
            return
        self._claims.hurry(client.process)
        claim = self._claims.of(client.process)
        if claim is not None:
            self._claimed(client.process, claim)

    def _connected(self, client: Client) -> None:
        """A second driver has its socket."""
        assert client.second_lane is not None
        self._is_on(client, client.second_lane)
        if self._claims is None:
            return
        handle = self._domain.clients.handle(client.process)
        if handle is not None:
            self._claims.watch(handle, client.user)
            handle.close()
        self._hurry(client)

    def _is_on(self, client: Client, name: str) -> None:
        """A client has a second driver on a lane: it may have work there, and a server of its user's."""
        lane = self._domain.lanes.named(name)
        if lane is not None:
            lane.service.client_came(client.process.pid, client.user)
        self._observe(client, SecondDriverCame(name))

    def _claimed(self, process: ProcessKey, claim: SecondClaim) -> None:
        client = self._domain.clients.get(process)
        if client is None:
            return
        if claim.phase is ClaimPhase.GOING_OVER and self._claims is not None:
            self._claims.hurry(process)
        self._repetitions.said(client, claim.repetition, lost_at=self.drivers.lost_at(client))
        if claim.phase is ClaimPhase.WENT_OVER:
            self._went_over(process, claim.times)
        elif claim.phase is ClaimPhase.MOVED:
            self.moves.said_moved(process)
        elif claim.phase is ClaimPhase.REFUSED and self.drivers.refused(process):
            self._tell_refused(client, claim)
        self._prompted.set()

    def _last_word(
        self, client: Client, lost_at: float | None, before: RepetitionState, times: int, claim: SecondClaim
    ) -> None:
        """A program may end sooner than it is looked at again, as one does that gets its error."""
        self._repetitions.last(client, claim.repetition, before, lost_at=lost_at)
        lost = lost_at is not None
        if claim.phase is ClaimPhase.REFUSED and lost:
            self._tell_refused(client, claim)
        elif claim.phase is ClaimPhase.WENT_OVER and claim.times != times and lost and client.second_lane is not None:
            self._tell_went_over(client, client.second_lane, client.lane)

    def _tell_refused(self, client: Client, claim: SecondClaim) -> None:
        process, name = client.process, self._domain.name
        self._metrics.second_drivers.labels(name, "refused").inc()
        told = {"pid": process.pid, "start_ticks": process.start_ticks, "lane": client.lane}
        self._events.publish("second_driver_refused", name, user=client.user, **told, reason=claim.reason)

    async def _said(self, process: ProcessKey) -> SecondClaim | None:
        if self._claims is None:
            return None
        with suppress(TimeoutError):
            async with asyncio.timeout(_SAID_WITHIN):
                await self._claims.looked(process)
        return self._claims.of(process)

    def _went_over(self, process: ProcessKey, times: int) -> None:
        changed = self.drivers.went_over(process, times)
        if changed is None:
            return
        self._repetitions.again(process)
        assert changed.lane_before is not None
        self._tell_went_over(changed, changed.lane, changed.lane_before)
        was = self._domain.lanes.active
        # A lane that serves again is left to newcomers: when a client says that it has gone over is its own choice.
        if was.spec.name == changed.lane_before and was.report.state is LaneState.FAULT:
            self._domain.move_to(changed.lane, changed.lane_before, "clients went over", self._events)

    def _tell_went_over(self, client: Client, lane: str, was: str) -> None:
        process, name = client.process, self._domain.name
        self._metrics.second_drivers.labels(name, "went_over").inc()
        told = {"pid": process.pid, "start_ticks": process.start_ticks, "lane": lane, "was": was}
        self._events.publish("client_went_over", name, user=client.user, **told)
        self._observe(client, WentOver(lane, was))

    def _holds(self, lane: Lane) -> bool:
        """Return whether a lane's server may have clients that work on another one, and so may hold it."""
        return any(
            client.lane != lane.spec.name
            and (
                client.lane_before == lane.spec.name
                or client.second_driver is not None
                or self.drivers.has_lost_second(client.process)
            )
            for client in self._domain.clients.all()
        )

    def _gone_from(self, lane: Lane) -> list[Client]:
        return [client for client in self._domain.clients.all() if client.lane_before == lane.spec.name]

    async def _release(self, lane: Lane) -> float:
        """Tell a faulted lane's servers to end if it is time; return the seconds until the next look."""
        name = lane.spec.name
        since = self._faulted_at.get(name)
        listed: set[int] = set()
        with suppress(CommandFailedError):  # then what the guard itself knows has to do
            listed = set(await lane.clients())
        # The same fault as before the question.
        if since is None or self._faulted_at.get(name) != since:
            return _PAUSE
        due = lane_release.due(self._remaining(lane, listed), since)
        if due is None or time.monotonic() < due:
            return _PAUSE
        # Also those that were about to enter when the fault was seen.
        self.drivers.faulted(name)
        went_over = len(self._gone_from(lane))
        assert self._sensors is not None  # `open` comes before `run`
        await end_servers(lane, self._domain.name, self._sensors, self._events, went_over=went_over)
        return _PAUSE_FAILED

    def _remaining(self, lane: Lane, listed: set[int]) -> list[Remaining]:
        by_pid = {client.process.pid: client for client in self._domain.clients.all()}
        name = lane.spec.name
        there = listed | {pid for pid, client in by_pid.items() if name in (client.lane, client.lane_before)}
        return [self._one(pid, by_pid.get(pid), name) for pid in there]

    def _one(self, pid: int, client: Client | None, lane: str) -> Remaining:
        if client is None:
            return Remaining(pid, elsewhere=False, may_go_over=False)
        claim = self.claim(client.process)
        may_go_over = claim is not None and claim.may_go_over and self.drivers.may_go_over(client)
        return Remaining(pid, client.lane != lane, may_go_over)

    def _repeated(self, client: Client, what: WorkRepeated) -> None:
        self._observe(client, what, Source.PRELOAD)

    def _observe(self, client: Client | None, what: Observation, source: Source = Source.LANE) -> None:
        if self._sensors is None:
            return
        now = time.monotonic()
        process = client.process if client is not None else None
        trust = Trust.PROOF if isinstance(what, SecondDriverCame) else Trust.NONE
        self._sensors.told(Evidence(source=source, observed_at=now, what=what, process=process, trust=trust))
