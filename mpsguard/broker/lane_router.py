"""Lane router: chooses the lane for a peer, which is the active one or that of a program's standby."""

from typing import Protocol

from mpsguard.broker.client_table import ClientTable
from mpsguard.broker.program_shares import ProgramShares
from mpsguard.broker.standby_places import StandbyPlaces
from mpsguard.lanes.lane import Lane
from mpsguard.lanes.lane_set import LaneSet
from mpsguard.model import Credentials, ProcessKey


class LaneRouter(Protocol):
    """Chooses the lane for a peer."""

    @property
    def routes_by_program(self) -> bool:
        """Whether `for_client` uses the program to which a client claims to belong."""

    def now(self) -> Lane:
        """Return the lane for an unknown peer, or for a user's command."""

    def for_client(self, process: ProcessKey, sender: Credentials, program: str | None) -> Lane:
        """Return the lane for a client: the lane that it is on, if it is on one."""


class _Router:
    def __init__(self, lanes: LaneSet, known: ClientTable) -> None:
        self._lanes = lanes
        self._known = known

    def _home(self, process: ProcessKey) -> Lane | None:
        """Return the lane that a client is on: each of its contexts is a connection, and all belong on one lane."""
        client = self._known.get(process)
        return self._lanes.named(client.lane) if client is not None else None


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

    def __init__(self, lanes: LaneSet, known: ClientTable, shares: ProgramShares, places: StandbyPlaces) -> None:
        super().__init__(lanes, known)
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
        if self._shares.on_trial(sender.uid, program) or not self._places.has(process, sender):
            return self._lanes.active
        at_work = {
            client.lane
            for client in self._known.all()
            if program and client.uid == sender.uid and client.program == program
        }
        spare = self.now()
        return next((lane for lane in (spare, *self._lanes.all) if lane.spec.name not in at_work), spare)
