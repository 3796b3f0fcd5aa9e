"""Who was on a lane when: what the evidence says of clients coming and ending, and of the lanes' servers."""

from bisect import bisect_right, insort
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

import msgspec

from mpsguard.evidence import ClientCame, Evidence, LaneChanged, ProcessEnded, ServerSays
from mpsguard.incident import Suspect
from mpsguard.model import LaneState, ProcessKey

_MOST_PIDS: Final = 64
"""Servers' pids, and times, that are remembered of one lane, the latest: it has one server, and a new one after a
failure."""

END_LAG: Final = 0.5
"""Seconds by which the end of a process may be seen later than its GPU work was left alone (0.23 s seen)."""


def when(evidence: Evidence) -> float:
    """The best that is known of when it happened."""
    return evidence.observed_at if evidence.happened_at is None else evidence.happened_at


class Member(msgspec.Struct, frozen=True):
    """One client's time on its lane."""

    process: ProcessKey
    lane: str
    came: float
    ended: float | None
    uid: int | None = None

    def was_there(self, at: float) -> bool:
        """Whether it lived at a time; the moment of its end counts."""
        return self.came <= at and (self.ended is None or self.ended >= at)


class _Lane:
    """What is remembered of a lane, for as long as the lane is there."""

    def __init__(self) -> None:
        self.members: dict[ProcessKey, Member] = {}
        self.last_end = float("-inf")
        """When a client of it last ended, forgotten ones included."""
        self.forgotten: tuple[float, float] | None = None
        """Of the clients that have ended and are forgotten: when the first of them ended, and the last of them came."""
        self.states: list[tuple[float, str, bool]] = []
        """What its daemon said: when, the state, and whether it has a server; ascending, the last few."""
        self.servers: dict[int, None] = {}

    def fresh(self) -> list[float]:
        """When it was seen to have no server."""
        return [at for at, _, served in self.states if not served]

    def resets(self) -> list[float]:
        """When its server was gone, or had cleaned up after a fault.

        The daemon's own word: what stands in the logs, the server's user could have written.
        """
        cleaned = [
            after[0]
            for before, after in pairwise(self.states)
            if after[1] == LaneState.ACTIVE.value and before[1] in (LaneState.FAULT.value, LaneState.INITIALIZING.value)
        ]
        return [*self.fresh(), *cleaned]

    def found_at_work(self) -> float | None:
        """When it was found with a server that had clients of which nothing is known."""
        first = self.states[0] if self.states else None
        return first[0] if first is not None and first[2] else None


class ClientHistory:
    """The clients and lanes that evidence tells of: an index, to which evidence is added in any order."""

    def __init__(self, evidence: Iterable[Evidence] = ()) -> None:
        self._members: dict[ProcessKey, Member] = {}
        self._ended: dict[ProcessKey, float] = {}
        """Of processes whose coming is not known (yet)."""
        self._by_pid: dict[int, dict[ProcessKey, None]] = {}
        self._lanes: dict[str, _Lane] = {}
        self._servers: dict[int, None] = {}
        """Those of which the lane is not known."""
        for each in evidence:
            self.add(each)

    def add(self, evidence: Evidence) -> None:
        """Take in one observation; most say nothing of clients or lanes."""
        what, process, at = evidence.what, evidence.process, when(evidence)
        if isinstance(what, ClientCame) and process is not None:
            known = self._members.get(process)
            if known is None or at < known.came:
                ended = known.ended if known is not None else self._ended.pop(process, None)
                self._put(Member(process, what.lane, at, ended, what.uid))
        elif isinstance(what, ProcessEnded) and process is not None:
            known = self._members.get(process)
            if known is None:
                self._ended[process] = at
            else:
                self._put(msgspec.structs.replace(known, ended=at))
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
        """A client that has ended, and of which nothing more can be told."""
        member = self._members.pop(process, None)
        self._ended.pop(process, None)
        if member is None:
            return
        lane = self._lanes[member.lane]
        del lane.members[process]
        if member.ended is not None and not any(member.came <= reset for reset in lane.resets()):
            first, last = lane.forgotten or (member.ended, member.came)
            lane.forgotten = min(first, member.ended), max(last, member.came)
        there = self._by_pid[process.pid]
        del there[process]
        if not there:
            del self._by_pid[process.pid]

    def member(self, process: ProcessKey | None) -> Member | None:
        """A client by its identity."""
        return self._members.get(process) if process is not None else None

    def all(self) -> tuple[Member, ...]:
        """Every client, in the order of their identities."""
        return tuple(sorted(self._members.values(), key=lambda member: member.process))

    def of_pid(self, pid: int, at: float) -> Member | None:
        """The client that had a pid at a time."""
        members = (self._members[process] for process in sorted(self._by_pid.get(pid, ())))
        return next((member for member in members if member.was_there(at)), None)

    def present(self, at: float, lane: str | None) -> tuple[Member, ...]:
        """The clients that lived at a time, on one lane or on any, in the order of their identities."""
        if lane is not None and lane not in self._lanes:
            return ()
        members = self._members if lane is None else self._lanes[lane].members
        return tuple(sorted((m for m in members.values() if m.was_there(at)), key=lambda member: member.process))

    def suspect(self, process: ProcessKey) -> Suspect:
        """A process as it stands in an incident."""
        return Suspect(process.pid, process, process in self._members)

    def servers(self, lane: str) -> frozenset[int]:
        """Pids that servers of a lane have, or had."""
        known = self._lanes.get(lane)
        return frozenset(known.servers) if known is not None else frozenset()

    def all_servers(self) -> frozenset[int]:
        """Pids that servers of any lane have, or had."""
        return frozenset(self._servers).union(*(lane.servers for lane in self._lanes.values()))

    def lanes_of_server(self, pid: int) -> frozenset[str]:
        """The lanes of which a pid is, or was, a server's."""
        return frozenset(name for name, lane in self._lanes.items() if pid in lane.servers)

    def none_ended_since_the_server_started(self, lane: str, at: float) -> bool:
        """Whether it is known that no client of a lane has ended on the server that was there at a time."""
        known = self._lanes.get(lane)
        if known is None:
            return False
        started = max((fresh for fresh in known.fresh() if fresh <= at), default=None)
        return started is not None and known.last_end < started

    def may_hold_work_of_the_ended(self, member: Member, now: float) -> bool:
        """Whether an earlier client may have ended alone on the lane, on a server that has not cleaned up since.

        Without another client the server takes no notice of what an ended one left on the GPU. That a client has ended
        is seen up to END_LAG later.
        """
        known = self._lanes[member.lane]
        others = sorted(
            (each for each in known.members.values() if each.process != member.process), key=lambda each: each.came
        )
        cames = [each.came for each in others]
        lived: list[float] = []
        """Until when at least one of the first so many was alive for certain."""
        for each in others:
            until = (now if each.ended is None else each.ended) - END_LAG
            lived.append(max(until, lived[-1]) if lived else until)

        def alone(first: float, last: float) -> bool:
            """Whether it may be that there was no client at some time between."""
            index = bisect_right(cames, first)
            return not index or lived[index - 1] < last

        gone = [
            each.came
            for each in others
            if each.came <= member.came
            and (end := (now if each.ended is None else each.ended) - END_LAG) <= member.came
            and alone(end, min(end + END_LAG, member.came))
        ]
        if known.forgotten is not None and alone(known.forgotten[0] - END_LAG, member.came):
            gone.append(known.forgotten[1])
        found = known.found_at_work()
        if found is not None and found <= member.came and alone(found + END_LAG, member.came):
            gone.append(found)
        newest = max(gone, default=float("-inf"))
        # A server that cleans up ends the work of all clients that it has by then, even of those that end later.
        return newest > float("-inf") and not any(newest <= reset <= member.came for reset in known.resets())

    def _serves(self, pid: int, lane: str | None) -> None:
        _remember(self._servers if lane is None else self._lane(lane).servers, pid)

    def _lane(self, name: str) -> _Lane:
        return self._lanes.setdefault(name, _Lane())

    def _put(self, member: Member) -> None:
        before = self._members.get(member.process)
        if before is not None and before.lane != member.lane:
            del self._lanes[before.lane].members[member.process]
        self._members[member.process] = member
        lane = self._lane(member.lane)
        lane.members[member.process] = member
        if member.ended is not None:
            lane.last_end = max(lane.last_end, member.ended)
        self._by_pid.setdefault(member.process.pid, {})[member.process] = None


def _remember(pids: dict[int, None], pid: int) -> None:
    pids.pop(pid, None)
    pids[pid] = None
    if len(pids) > _MOST_PIDS:
        del pids[next(iter(pids))]


def _insert(states: list[tuple[float, str, bool]], state: tuple[float, str, bool]) -> None:
    if state not in states:
        insort(states, state)
        del states[:-_MOST_PIDS]
