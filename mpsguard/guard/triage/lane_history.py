"""Lane history: which clients were on one lane at what time, and the states and servers of its control daemon."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import accumulate
from math import inf
from typing import Final, NamedTuple

import msgspec

from mpsguard.guard.model import LaneState
from mpsguard.linux.identity import ProcessKey

_MOST_PIDS: Final = 64
"""Pids of servers, and states, remembered per lane; the oldest are forgotten. A lane has one server, and a new one
after a failure."""

SERVED_LAG: Final = 1.0
"""Seconds after its coming until a client is certainly the server's that is there: one that comes while a fault is not
yet seen is served when it is over, and one for which a server is being started is not of the one before."""


CONTEXT_AT_LEAST: Final = 0.06
"""Seconds that a client needs from a server that serves again to its first kernel (89 ms and more in 1,600 starts from
cuInit on, of which cuInit is a tenth; H100, 580.159.04). A server that cleans up answers no question for 50 ms."""


class ClientStay(msgspec.Struct, frozen=True, dict=True):
    """One client's presence on its lane, from its arrival to its end."""

    process: ProcessKey
    lane: str
    arrived: float
    ended: float | None
    uid: int | None = None
    kept: bool = False
    """Whether its address space was kept beyond its end (a lifeline)."""
    left: float | None = None
    """When its second driver took it over to another lane, after a fault of this one; it has a stay there, too."""
    spare_until: float = float("-inf")
    """Of the stay of a second driver: until when the client's own work was on another lane."""

    @cached_property
    def until(self) -> float | None:
        """Return when it ended, or left the lane; None if neither."""
        return min((at for at in (self.ended, self.left) if at is not None), default=None)

    def was_there(self, at: float) -> bool:
        """Return whether the client lived and was on the lane at a time; the moment of its end counts."""
        return self.arrived <= at and (self.until is None or self.until >= at)

    def may_be_there(self, at: float, fresh: Iterable[float]) -> bool:
        """Return whether it had left by a time as it says itself, and nothing proves that: no end of the server.

        Args:
            at: the time.
            fresh: when the lane was seen to have no server, until then.
        """
        if self.left is None or self.left >= at or (self.ended is not None and self.ended < at):
            return False
        return not any(self.left <= each for each in fresh)


class Reset(NamedTuple):
    """A lane's server was gone, or had cleaned up after a fault, which ends the work of those that it had served."""

    began: float
    """When the fault was seen; where a server was gone, when that was."""
    done: float
    still: float
    """When the fault was certainly not over yet; where a server was gone, when that was."""

    def ended_work(self, arrived: float, ended: float | None) -> bool:
        """Return whether it ended the work of a client, if it left any.

        One that came in the last moment may have been served by what came after, unless it had ended before it can have
        had work there.
        """
        return arrived <= self.began - SERVED_LAG or (ended is not None and ended <= self.still)

    def and_before(self, other: "Reset | None") -> "Reset":
        """Return this reset and an earlier one as one, which ended the work that either of them did."""
        if other is None:
            return self
        return Reset(max(self.began, other.began), self.done, max(self.still, other.still))


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


class _State(NamedTuple):
    """What a control daemon reported."""

    at: float
    state: str
    served: bool
    """Whether it had a server."""
    fault_asked: float
    """When the last answer that told of a fault was asked for."""


class LaneHistory:
    """The history of one lane."""

    def __init__(self) -> None:
        self._stays: dict[ProcessKey, ClientStay] = {}
        self._arrivals: list[tuple[float, ProcessKey]] = []
        """Of all stays; ascending."""
        self._alive: list[_Alive] | None = None
        """For each number of first arrivals; None if it is to be made anew."""
        self._last_forgotten = -inf
        """When the last of the clients that are forgotten ended."""
        self.forgotten: Forgotten | None = None
        self.states: list[_State] = []
        """The last few states that its control daemon reported; ascending."""
        self._resets: tuple[Reset, ...] | None = ()
        """None if they are to be found anew."""
        self.servers: dict[int, None] = {}
        """Pids of its servers, including earlier ones."""
        self.told_to_end: dict[int, None] = {}
        """Pids of servers that the guard told to end."""

    def put(self, stay: ClientStay) -> None:
        """Add a stay, in the place of an earlier one of the client."""
        self.drop(stay.process)
        self._stays[stay.process] = stay
        insort(self._arrivals, (stay.arrived, stay.process))
        self._alive = None

    def forget(self, process: ProcessKey) -> None:
        """Remove the stay of a client that has ended."""
        until = self._stays[process].until
        self._last_forgotten = max(self._last_forgotten, inf if until is None else until)
        self.drop(process)

    def has_ended(self, since: float, until: float) -> bool:
        """Return whether a client has ended, or left, between two times, or may have: one that is forgotten."""
        ends = (stay.until for stay in self._stays.values() if stay.until is not None)
        return self._last_forgotten >= since or any(since <= end <= until for end in ends)

    def drop(self, process: ProcessKey) -> None:
        """Remove a client's stay, if there is one."""
        stay = self._stays.pop(process, None)
        if stay is not None:
            del self._arrivals[bisect_left(self._arrivals, (stay.arrived, process))]
            self._alive = None

    def arrived(self, after: float, until: float) -> list[ClientStay]:
        """Return the stays of the clients that arrived later than ``after``, and not later than ``until``."""
        first = bisect_right(self._arrivals, after, key=_time)
        past = bisect_right(self._arrivals, until, key=_time)
        return [self._stays[process] for _, process in self._arrivals[first:past]]

    def alive_until(self, at: float) -> "_Alive":
        """Return until when clients lived that had arrived by a time, one of them at least."""
        if self._alive is None:
            self._alive = list(accumulate(map(self._one, self._arrivals), _Alive.either, initial=_NONE_ALIVE))
        return self._alive[bisect_right(self._arrivals, at, key=_time)]

    def _one(self, arrival: tuple[float, ProcessKey]) -> "_Alive":
        until = self._stays[arrival[1]].until
        return _Alive(-inf if until is None else until, until is None)

    def add_state(self, at: float, state: str, served: bool, fault_asked: float | None) -> None:
        """Add what its control daemon reported at a time; ``served``: whether it had a server."""
        new = _State(at, state, served, -inf if fault_asked is None else fault_asked)
        if new not in self.states:
            insort(self.states, new)
            del self.states[:-_MOST_PIDS]
            self._resets = None

    def fresh(self) -> list[float]:
        """Return the times at which it was seen to have no server."""
        return [each.at for each in self.states if not each.served]

    def present(self, at: float) -> list[ClientStay]:
        """Return the clients that were, or may have been, on it at a time.

        One that says that it has left may still have a socket to the server of before.
        """
        fresh = [each for each in self.fresh() if each <= at]
        return [stay for stay in self._stays.values() if stay.was_there(at) or stay.may_be_there(at, fresh)]

    def resets(self) -> tuple[Reset, ...]:
        """Return its resets, in the order in which they were done.

        These are the control daemon's answers: the server's user could have written to the logs.
        """
        if self._resets is None:
            self._resets = tuple(self._find_resets())
        return self._resets

    def reset_before(self, at: float) -> Reset | None:
        """Return all resets that were done by a time as one; None without any."""
        done: Reset | None = None
        for each in self.resets():
            if each.done <= at:
                done = each.and_before(done)
        return done

    def _find_resets(self) -> Iterator[Reset]:
        fault: float | None = None
        for at, state, served, fault_asked in self.states:
            if not served or (state == LaneState.ACTIVE.value and fault is not None):
                began = at if fault is None else fault
                yield Reset(began, at, max(began, min(at, fault_asked + CONTEXT_AT_LEAST)))
            if not served or state != LaneState.INITIALIZING.value:
                fault = at if state == LaneState.FAULT.value else None

    def found_at_work(self) -> float | None:
        """Return when it was found with a server already, which may have had unknown clients; None if it was not."""
        first = self.states[0] if self.states else None
        return first[0] if first is not None and first[2] else None


class _Alive(NamedTuple):
    """Until when clients lived."""

    ended: float
    """When the last of those that have ended did; -inf without any."""
    any_lives: bool

    def either(self, other: "_Alive") -> "_Alive":
        """Return the same of the clients of both."""
        return _Alive(max(self.ended, other.ended), self.any_lives or other.any_lives)


_NONE_ALIVE: Final = _Alive(-inf, False)


def _time(arrival: tuple[float, ProcessKey]) -> float:
    return arrival[0]


def remember(pids: dict[int, None], pid: int) -> None:
    """Add the pid of a server; the oldest one beyond the limit is forgotten."""
    pids.pop(pid, None)
    pids[pid] = None
    if len(pids) > _MOST_PIDS:
        del pids[next(iter(pids))]
