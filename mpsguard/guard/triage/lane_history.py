"""Lane history: which clients were on one lane at what time, and the states and servers of its control daemon."""

from bisect import insort
from typing import Final, NamedTuple

from mpsguard.guard.model import LaneState
from mpsguard.guard.triage.client_stay import ClientStay
from mpsguard.linux.identity import ProcessKey

_MOST_PIDS: Final = 64
"""Pids of servers, and states, remembered per lane; the oldest are forgotten. A lane has one server, and a new one
after a failure."""

SERVED_LAG: Final = 1.0
"""Seconds after its coming until a client is certainly the server's that is there: one that comes while a fault is not
yet seen is served when it is over, and one for which a server is being started is not of the one before."""


class Reset(NamedTuple):
    """A lane's server was gone, or had cleaned up after a fault, which ends the work of those that it had served."""

    began: float
    """When the fault was seen; where a server was gone, when that was."""
    done: float

    def ended_work(self, arrived: float, ended: float | None) -> bool:
        """Return whether it ended the work of a client, if it left any.

        One that came in the last moment may have been served by what came after, unless it had ended, too.
        """
        return arrived <= self.began - SERVED_LAG or (ended is not None and ended <= self.began)


class Forgotten(NamedTuple):
    """The ended clients of a lane that are forgotten, as one."""

    ended: float
    """When the first of them ended."""
    last_ended: float
    """When the last of them ended."""
    arrived: float
    """When the last of them arrived."""
    uid: int | None
    """Their user; None if it is not known, or there are several."""
    kept: bool
    """Whether an address space of theirs was kept."""

    def with_one_more(self, ended: float, stay: ClientStay) -> "Forgotten":
        """Return them with one more of them."""
        return Forgotten(
            min(self.ended, ended),
            max(self.last_ended, ended),
            max(self.arrived, stay.arrived),
            self.uid if self.uid == stay.uid else None,
            self.kept or stay.kept,
        )


class LaneHistory:
    """The history of one lane."""

    def __init__(self) -> None:
        self.stays: dict[ProcessKey, ClientStay] = {}
        self.last_end = float("-inf")
        """When a client of it last ended, including forgotten ones."""
        self.forgotten: Forgotten | None = None
        self.states: list[tuple[float, str, bool]] = []
        """The last few states reported by its control daemon: time, state, and whether it had a server; ascending."""
        self.servers: dict[int, None] = {}
        self.told_to_end: dict[int, None] = {}
        """Pids of servers that the guard told to end."""

    def add_state(self, at: float, state: str, served: bool) -> None:
        """Add what its control daemon reported at a time; ``served``: whether it had a server."""
        if (at, state, served) not in self.states:
            insort(self.states, (at, state, served))
            del self.states[:-_MOST_PIDS]

    def fresh(self) -> list[float]:
        """Return the times at which it was seen to have no server."""
        return [at for at, _, served in self.states if not served]

    def present(self, at: float) -> list[ClientStay]:
        """Return the clients that were, or may have been, on it at a time.

        One that says that it has left may still have a socket to the server of before.
        """
        fresh = [each for each in self.fresh() if each <= at]
        return [stay for stay in self.stays.values() if stay.was_there(at) or stay.may_be_there(at, fresh)]

    def resets(self) -> list[Reset]:
        """Return its resets.

        These are the control daemon's answers: the server's user could have written to the logs.
        """
        found = []
        fault: float | None = None
        for at, state, served in self.states:
            if not served or (state == LaneState.ACTIVE.value and fault is not None):
                found.append(Reset(at if fault is None else fault, at))
            if not served or state != LaneState.INITIALIZING.value:
                fault = at if state == LaneState.FAULT.value else None
        return found

    def found_at_work(self) -> float | None:
        """Return when it was found with a server already, which may have had unknown clients; None if it was not."""
        first = self.states[0] if self.states else None
        return first[0] if first is not None and first[2] else None


def remember(pids: dict[int, None], pid: int) -> None:
    """Add the pid of a server; the oldest one beyond the limit is forgotten."""
    pids.pop(pid, None)
    pids[pid] = None
    if len(pids) > _MOST_PIDS:
        del pids[next(iter(pids))]
