"""Client history: which clients were on which lane at what time, and the lanes' servers, according to the evidence."""

from bisect import bisect_right, insort
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

import msgspec

from mpsguard.evidence import ClientCame, Evidence, LaneChanged, ProcessEnded, ServerSays
from mpsguard.incident import Suspect
from mpsguard.model import LaneState, ProcessKey

_MOST_PIDS: Final = 64
"""Pids of servers, and states, remembered per lane; the oldest are forgotten. A lane has one server, and a new one
after a failure."""

END_LAG: Final = 0.5
"""Seconds by which the end of a process may be seen later than its GPU work was left alone (0.23 s seen)."""


def when(evidence: Evidence) -> float:
    """Return the best estimate of when it happened."""
    return evidence.observed_at if evidence.happened_at is None else evidence.happened_at


class ClientStay(msgspec.Struct, frozen=True):
    """One client's presence on its lane, from its arrival to its end."""

    process: ProcessKey
    lane: str
    arrived: float
    ended: float | None
    uid: int | None = None

    def was_there(self, at: float) -> bool:
        """Return whether the client lived at a time; the moment of its end counts."""
        return self.arrived <= at and (self.ended is None or self.ended >= at)


class _Lane:
    """The history of one lane."""

    def __init__(self) -> None:
        self.stays: dict[ProcessKey, ClientStay] = {}
        self.last_end = float("-inf")
        """When a client of it last ended, including forgotten ones."""
        self.forgotten: tuple[float, float] | None = None
        """Of the ended clients that are forgotten: when the first of them ended, and when the last of them arrived."""
        self.states: list[tuple[float, str, bool]] = []
        """The last few states reported by its control daemon: time, state, and whether it had a server; ascending."""
        self.servers: dict[int, None] = {}

    def fresh(self) -> list[float]:
        """Return the times at which it was seen to have no server."""
        return [at for at, _, served in self.states if not served]

    def resets(self) -> list[float]:
        """Return the times at which its server was gone, or had cleaned up after a fault.

        These are the control daemon's answers: the server's user could have written to the logs.
        """
        cleaned = [
            after[0]
            for before, after in pairwise(self.states)
            if after[1] == LaneState.ACTIVE.value and before[1] in (LaneState.FAULT.value, LaneState.INITIALIZING.value)
        ]
        return [*self.fresh(), *cleaned]

    def found_at_work(self) -> float | None:
        """Return when it was found with a server already, which may have had unknown clients; None if it was not."""
        first = self.states[0] if self.states else None
        return first[0] if first is not None and first[2] else None


class ClientHistory:
    """Index of the clients and lanes in the evidence, which may be added in any order."""

    def __init__(self, evidence: Iterable[Evidence] = ()) -> None:
        self._stays: dict[ProcessKey, ClientStay] = {}
        self._ended: dict[ProcessKey, float] = {}
        """Ends of processes with an arrival that is not known (yet)."""
        self._by_pid: dict[int, dict[ProcessKey, None]] = {}
        self._lanes: dict[str, _Lane] = {}
        self._servers: dict[int, None] = {}
        """Pids of servers with an unknown lane."""
        for each in evidence:
            self.add(each)

    def add(self, evidence: Evidence) -> None:
        """Add one observation; most are not about clients or lanes."""
        what, process, at = evidence.what, evidence.process, when(evidence)
        if isinstance(what, ClientCame) and process is not None:
            known = self._stays.get(process)
            if known is None or at < known.arrived:
                ended = known.ended if known is not None else self._ended.pop(process, None)
                self._put_stay(ClientStay(process, what.lane, at, ended, what.uid))
        elif isinstance(what, ProcessEnded) and process is not None:
            known = self._stays.get(process)
            if known is None:
                self._ended[process] = at
            else:
                self._put_stay(msgspec.structs.replace(known, ended=at))
                for pid in what.servers:
                    self._serves(pid, known.lane)
        elif isinstance(what, LaneChanged) and what.servers is not None:
            lane = self._lane(what.lane)
            for pid in what.servers:
                self._serves(pid, what.lane)
            _insert(lane.states, (at, what.state, bool(what.servers)))
        elif isinstance(what, ServerSays):
            self._serves(what.server, what.lane)

    def forget(self, process: ProcessKey) -> None:
        """Remove a client that has ended, and about which no more evidence is expected."""
        stay = self._stays.pop(process, None)
        self._ended.pop(process, None)
        if stay is None:
            return
        lane = self._lanes[stay.lane]
        del lane.stays[process]
        if stay.ended is not None and not any(stay.arrived <= reset for reset in lane.resets()):
            first, last = lane.forgotten or (stay.ended, stay.arrived)
            lane.forgotten = min(first, stay.ended), max(last, stay.arrived)
        there = self._by_pid[process.pid]
        del there[process]
        if not there:
            del self._by_pid[process.pid]

    def stay(self, process: ProcessKey | None) -> ClientStay | None:
        """Return the presence of a client, by its identity."""
        return self._stays.get(process) if process is not None else None

    def all(self) -> tuple[ClientStay, ...]:
        """Return the presences of all clients, in the order of their identities."""
        return tuple(sorted(self._stays.values(), key=lambda stay: stay.process))

    def of_pid(self, pid: int, at: float) -> ClientStay | None:
        """Return the presence of the client that had a pid at a time."""
        stays = (self._stays[process] for process in sorted(self._by_pid.get(pid, ())))
        return next((stay for stay in stays if stay.was_there(at)), None)

    def present(self, at: float, lane: str | None) -> tuple[ClientStay, ...]:
        """Return the clients that lived at a time, on one lane or on any, in the order of their identities."""
        if lane is not None and lane not in self._lanes:
            return ()
        stays = self._stays if lane is None else self._lanes[lane].stays
        there = (stay for stay in stays.values() if stay.was_there(at))
        return tuple(sorted(there, key=lambda stay: stay.process))

    def suspect(self, process: ProcessKey) -> Suspect:
        """Return a process in the form that incidents have."""
        return Suspect(process.pid, process, process in self._stays)

    def servers(self, lane: str) -> frozenset[int]:
        """Return the pids that servers of a lane have, or had."""
        known = self._lanes.get(lane)
        return frozenset(known.servers) if known is not None else frozenset()

    def all_servers(self) -> frozenset[int]:
        """Return the pids that servers of any lane have, or had."""
        return frozenset(self._servers).union(*(lane.servers for lane in self._lanes.values()))

    def lanes_of_server(self, pid: int) -> frozenset[str]:
        """Return the lanes with a server that has, or had, a pid."""
        return frozenset(name for name, lane in self._lanes.items() if pid in lane.servers)

    def none_ended_since_the_server_started(self, lane: str, at: float) -> bool:
        """Return whether it is known that no client has ended on the server that a lane had at a time."""
        known = self._lanes.get(lane)
        if known is None:
            return False
        started = max((fresh for fresh in known.fresh() if fresh <= at), default=None)
        return started is not None and known.last_end < started

    def may_hold_work_of_the_ended(self, stay: ClientStay, now: float) -> bool:
        """Return whether an earlier client may have ended alone on the lane, on a server that has not cleaned up since.

        Without another client, the server does not notice work that an ended client left on the GPU. The end of a
        client is observed up to END_LAG later.
        """
        known = self._lanes[stay.lane]
        others = sorted(
            (each for each in known.stays.values() if each.process != stay.process), key=lambda each: each.arrived
        )
        arrivals = [each.arrived for each in others]
        lived: list[float] = []
        """For each number of first arrivals: until when at least one of them was certainly alive."""
        for each in others:
            until = (now if each.ended is None else each.ended) - END_LAG
            lived.append(max(until, lived[-1]) if lived else until)

        def alone(first: float, last: float) -> bool:
            """Return whether there may have been no client at some time between ``first`` and ``last``."""
            index = bisect_right(arrivals, first)
            return not index or lived[index - 1] < last

        gone = [
            each.arrived
            for each in others
            if each.arrived <= stay.arrived
            and (end := (now if each.ended is None else each.ended) - END_LAG) <= stay.arrived
            and alone(end, min(end + END_LAG, stay.arrived))
        ]
        if known.forgotten is not None and alone(known.forgotten[0] - END_LAG, stay.arrived):
            gone.append(known.forgotten[1])
        found = known.found_at_work()
        if found is not None and found <= stay.arrived and alone(found + END_LAG, stay.arrived):
            gone.append(found)
        newest = max(gone, default=float("-inf"))
        # A server that cleans up ends the work of all its clients, even of those that end later.
        return newest > float("-inf") and not any(newest <= reset <= stay.arrived for reset in known.resets())

    def _serves(self, pid: int, lane: str | None) -> None:
        _remember(self._servers if lane is None else self._lane(lane).servers, pid)

    def _lane(self, name: str) -> _Lane:
        return self._lanes.setdefault(name, _Lane())

    def _put_stay(self, stay: ClientStay) -> None:
        before = self._stays.get(stay.process)
        if before is not None and before.lane != stay.lane:
            del self._lanes[before.lane].stays[stay.process]
        self._stays[stay.process] = stay
        lane = self._lane(stay.lane)
        lane.stays[stay.process] = stay
        if stay.ended is not None:
            lane.last_end = max(lane.last_end, stay.ended)
        self._by_pid.setdefault(stay.process.pid, {})[stay.process] = None


def _remember(pids: dict[int, None], pid: int) -> None:
    pids.pop(pid, None)
    pids[pid] = None
    if len(pids) > _MOST_PIDS:
        del pids[next(iter(pids))]


def _insert(states: list[tuple[float, str, bool]], state: tuple[float, str, bool]) -> None:
    if state not in states:
        insort(states, state)
        del states[:-_MOST_PIDS]
