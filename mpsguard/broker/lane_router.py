"""Where a public directory leads: to the active lane, or to that on which a program's standby belongs."""

from typing import Protocol

from mpsguard.broker.client_table import ClientTable
from mpsguard.lanes.lane import Lane
from mpsguard.lanes.lane_set import LaneSet
from mpsguard.model import Credentials, ProcessKey


class LaneRouter(Protocol):
    """Says to which lane a peer is brought."""

    @property
    def asks_for_the_program(self) -> bool:
        """Whether `for_client` goes by the program that a client says it belongs to."""

    def now(self) -> Lane:
        """The lane for somebody of whom nothing is known yet, or for a user's command."""

    def for_client(self, process: ProcessKey, sender: Credentials, program: str | None) -> Lane:
        """The lane for a client: the one on which it is already, if it is on one."""


class _Way:
    def __init__(self, lanes: LaneSet, known: ClientTable) -> None:
        self._lanes = lanes
        self._known = known

    def _home(self, process: ProcessKey) -> Lane | None:
        """Each of a client's contexts is a connection; all of them belong on one lane."""
        client = self._known.get(process)
        return self._lanes.named(client.lane) if client is not None else None


class ActiveLaneRouter(_Way):
    """To the active lane."""

    asks_for_the_program = False

    def now(self) -> Lane:
        """See `LaneRouter`."""
        return self._lanes.active

    def for_client(self, process: ProcessKey, _: Credentials, __: str | None) -> Lane:
        """See `LaneRouter`."""
        return self._home(process) or self._lanes.active


class StandbyLaneRouter(_Way):
    """To the spare lane; if the program's own work is there, to the other one."""

    asks_for_the_program = True

    def now(self) -> Lane:
        """See `LaneRouter`."""
        return self._lanes.spare or self._lanes.active

    def for_client(self, process: ProcessKey, sender: Credentials, program: str | None) -> Lane:
        """See `LaneRouter`. Whoever names another's program moves nobody but itself."""
        home = self._home(process)
        if home is not None:
            return home
        at_work = {
            client.lane
            for client in self._known.all()
            if program and client.uid == sender.uid and client.program == program
        }
        spare = self.now()
        return next((lane for lane in (spare, *self._lanes.all) if lane.spec.name not in at_work), spare)
