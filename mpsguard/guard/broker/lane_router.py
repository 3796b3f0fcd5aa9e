"""Lane router: chooses the lane for a peer: the active one, a standby's, or that of a second driver."""

from typing import Protocol

from mpsguard.guard.broker.admission import Admission
from mpsguard.guard.broker.client_table import ClientTable
from mpsguard.guard.broker.lowered_shares import ProgramShares
from mpsguard.guard.broker.second_drivers import SecondDrivers
from mpsguard.guard.broker.standby_places import StandbyPlaces
from mpsguard.guard.lanes import mps_protocol
from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.lanes.lane_set import LaneSet
from mpsguard.linux.identity import Credentials, ProcessKey


class LaneRouter(Protocol):
    """Chooses the lane for a peer."""

    @property
    def routes_by_program(self) -> bool:
        """Whether `for_client` uses the program to which a client claims to belong."""

    def now(self) -> Lane:
        """Return the lane for an unknown peer, or for a user's command."""

    async def admit(self, admission: Admission) -> None:
        """Raise RefusedError for a client that may not connect here; may set what its server is to give it."""

    def for_client(self, process: ProcessKey, sender: Credentials, program: str | None) -> Lane:
        """Return the lane for a client: the lane that it is on, if it is on one."""

    def may_have(self, process: ProcessKey, lane: Lane) -> bool:
        """Return whether a process may have its socket to the server of a lane that was its own when it came there."""

    def connected(self, process: ProcessKey, lane: str) -> None:
        """Take note of a client that has its socket to the server of a lane."""

    def answer(self, command: str, pid: int) -> str | None:
        """Return the answer to a command of the guard's own, for the process that gave it; None: it is the lane's."""


class _Router:
    def __init__(self, lanes: LaneSet, known: ClientTable, seconds: SecondDrivers) -> None:
        self._lanes = lanes
        self._known = known
        self._seconds = seconds

    def _home(self, process: ProcessKey) -> Lane | None:
        """Return the lane that a client is on: each of its contexts is a connection, and all belong on one lane."""
        lane = self._known.lane_of(process)
        return self._lanes.named(lane) if lane is not None else None

    async def admit(self, admission: Admission) -> None:
        """See `LaneRouter`: every client may come, and a known one gets no more than when it came first."""
        client = self._known.get(admission.key)
        if client is not None:
            admission.levers, admission.service_class = self._seconds.levers_of(client), client.service_class

    def may_have(self, process: ProcessKey, lane: Lane) -> bool:
        """See `LaneRouter`: a process that comes to two directories at once is no client at either yet."""
        return self._home(process) in (None, lane)

    def connected(self, process: ProcessKey, _: str) -> None:
        """See `LaneRouter`."""
        self._seconds.reconnected(process)

    def answer(self, _: str, __: int) -> str | None:
        """See `LaneRouter`."""
        return None


class ActiveLaneRouter(_Router):
    """Routes to the active lane."""

    routes_by_program = False

    def now(self) -> Lane:
        """See `LaneRouter`."""
        return self._lanes.active

    def for_client(self, process: ProcessKey, _: Credentials, __: str | None) -> Lane:
        """See `LaneRouter`."""
        return self._home(process) or self._lanes.active


class StandbyLaneRouter(_Router):
    """Routes to the spare lane, or to the other one if the program's own work is on the spare lane.

    A standby of a program that is being resized is to take over at once: it comes to the active lane, because on
    another one its share would not protect the clients of that lane. So does a client without a place there.
    """

    routes_by_program = True

    def __init__(
        self,
        lanes: LaneSet,
        known: ClientTable,
        seconds: SecondDrivers,
        shares: ProgramShares,
        places: StandbyPlaces,
    ) -> None:
        super().__init__(lanes, known, seconds)
        self._shares = shares
        self._places = places

    def now(self) -> Lane:
        """See `LaneRouter`."""
        return self._lanes.spare or self._lanes.active

    def for_client(self, process: ProcessKey, sender: Credentials, program: str | None) -> Lane:
        """See `LaneRouter`. MPSGUARD_PROGRAM is untrusted; it only affects the caller's own routing."""
        home = self._home(process)
        if home is not None:
            return home
        if self._shares.on_trial(sender.user, program) or not self._places.has(process, sender):
            return self._lanes.active
        at_work = {
            client.lane
            for client in self._known.all()
            if program and client.user == sender.user and client.program == program
        }
        spare = self.now()
        return next((lane for lane in (spare, *self._lanes.all) if lane.spec.name not in at_work), spare)


class SecondLaneRouter:
    """Routes second drivers, of which each connection at the domain's directory ``second`` is one."""

    routes_by_program = False

    def __init__(self, lanes: LaneSet, seconds: SecondDrivers) -> None:
        self._lanes = lanes
        self._seconds = seconds

    def now(self) -> Lane:
        """See `LaneRouter`."""
        return self._lanes.spare or self._lanes.active

    async def admit(self, admission: Admission) -> None:
        """See `LaneRouter`. A process that may come is a client, if only since a moment ago."""
        admission.levers = await self._seconds.admit(admission.key, admission.sender)
        admission.is_new = False

    def for_client(self, process: ProcessKey, _: Credentials, __: str | None) -> Lane:
        """See `LaneRouter`. A client that has ended meanwhile goes anywhere."""
        return self._seconds.lane_of(process) or self.now()

    def may_have(self, process: ProcessKey, lane: Lane) -> bool:
        """See `LaneRouter`: it may have been asked to move meanwhile."""
        return self._seconds.lane_of(process) in (None, lane)

    def connected(self, process: ProcessKey, lane: str) -> None:
        """See `LaneRouter`."""
        self._seconds.connected(process, lane)

    def answer(self, command: str, pid: int) -> str | None:
        """See `LaneRouter`."""
        match command.split():
            case [mps_protocol.REPETITION_COMMAND]:
                return self._seconds.repetition(pid)
            case [mps_protocol.SECOND_LANE_COMMAND]:
                return self._seconds.readiness(pid)
        return None
