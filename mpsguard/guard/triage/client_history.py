"""Client history: which clients were on which lane at what time, and the lanes' servers, according to the evidence."""

from collections.abc import Iterable
from math import inf, nextafter
from typing import Final, NamedTuple

import msgspec

from mpsguard.guard.evidence import (
    ClientCame,
    Evidence,
    LaneChanged,
    LogRead,
    ProcessEnded,
    SecondDriverCame,
    ServerEnding,
    ServerSays,
    WentOver,
    WorkRepeated,
)
from mpsguard.guard.incident import Suspect
from mpsguard.guard.triage.fault_log import FaultLog
from mpsguard.guard.triage.lane_history import SERVED_LAG, ClientStay, Forgotten, LaneHistory, remember
from mpsguard.guard.triage.repetitions import Repetitions
from mpsguard.linux.identity import ProcessKey

END_LAG: Final = 0.5
"""Seconds by which the end of a process may be seen later than its GPU work was left alone (0.23 s seen)."""

LINE_LAG: Final = 0.25
"""Seconds after the end of a process was seen until the kernel log has its line of what it left: the line came 0.05 s
before the end was seen. The GPU stands still in between, so that nothing faults in another queue first (0.14 s)."""


def when(evidence: Evidence) -> float:
    """Return the best estimate of when it happened."""
    return evidence.observed_at if evidence.happened_at is None else evidence.happened_at


class _Gone(NamedTuple):
    """A client that may have left a lane empty."""

    arrived: float
    since: float | None
    """When its work can have been left alone at the earliest; None if that is not known."""
    ended: float
    """When its end was seen."""
    name: str
    uid: int | None
    """Its user; None if it is not known, or there are several."""
    kept: bool
    """Whether its address space was kept."""


class ClientHistory:
    """Index of the clients and lanes in the evidence, which may be added in any order."""

    def __init__(self, evidence: Iterable[Evidence] = ()) -> None:
        self._stays: dict[ProcessKey, ClientStay] = {}
        self._arrivals: dict[ProcessKey, set[tuple[float, str]]] = {}
        """When a client's further drivers came, and to which lanes."""
        self._went_over: dict[ProcessKey, set[tuple[float, str, str]]] = {}
        """When a client went over, from which lane, and to which."""
        self._further_stays: dict[ProcessKey, dict[str, ClientStay]] = {}
        """The stays on other lanes than a client's first."""
        self._ended: dict[ProcessKey, tuple[float, bool]] = {}
        """Ends of processes with an arrival that is not known (yet)."""
        self._by_pid: dict[int, dict[ProcessKey, None]] = {}
        self._lanes: dict[str, LaneHistory] = {}
        self._servers: dict[int, None] = {}
        """Pids of servers with an unknown lane."""
        self._known_servers = 0
        """How many pids of servers were learned."""
        self._log = FaultLog()
        self.repetitions = Repetitions()
        for each in evidence:
            self.add(each)

    def add(self, evidence: Evidence) -> float:
        """Add one observation; most are not about clients or lanes.

        Return from when on what is told of clients, lanes and the kernel log may be another: nothing about an earlier
        time is, but for END_LAG.
        """
        read, servers = self._log.read_until(), self._known_servers
        self._add(evidence)
        what = evidence.what
        if (
            isinstance(what, SecondDriverCame | WentOver | ServerEnding | WorkRepeated)
            or servers != self._known_servers
        ):
            return -inf
        return min(read, when(evidence)) if isinstance(what, LogRead) else when(evidence)

    def _add(self, evidence: Evidence) -> None:
        what, process, at = evidence.what, evidence.process, when(evidence)
        self._log.add(evidence)
        self.repetitions.add(evidence)
        if isinstance(what, ClientCame) and process is not None:
            known = self._stays.get(process)
            if known is None or at < known.arrived:
                before = (None, False) if known is None else (known.ended, known.kept)
                ended, kept = self._ended.pop(process, before)
                self._put_stay(ClientStay(process, what.lane, at, ended, what.uid, kept))
        elif isinstance(what, ProcessEnded) and process is not None:
            known = self._stays.get(process)
            if known is None:
                self._ended[process] = at, what.kept
            else:
                self._put_stay(msgspec.structs.replace(known, ended=at, kept=what.kept))
                for pid in what.servers:
                    self._serves(pid, known.lane)
        elif isinstance(what, SecondDriverCame | WentOver) and process is not None:
            self._add_second(process, what, at)
        elif isinstance(what, ServerEnding):
            remember(self._lane(what.lane).told_to_end, what.server)
        elif isinstance(what, LaneChanged) and what.servers is not None:
            lane = self._lane(what.lane)
            for pid in what.servers:
                self._serves(pid, what.lane)
            lane.add_state(at, what.state, bool(what.servers), what.fault_asked)
        elif isinstance(what, ServerSays):
            self._serves(what.server, what.lane)

    def _add_second(self, process: ProcessKey, what: SecondDriverCame | WentOver, at: float) -> None:
        self._arrivals.setdefault(process, set()).add((at, what.lane))
        if isinstance(what, WentOver):
            self._went_over.setdefault(process, set()).add((at, what.was, what.lane))
        known = self._stays.get(process)
        if known is not None:
            self._put_stay(known)

    def forget(self, process: ProcessKey) -> None:
        """Remove a client that has ended, and about which no more evidence is expected."""
        stay = self._stays.pop(process, None)
        self._ended.pop(process, None)
        self._arrivals.pop(process, None)
        self._went_over.pop(process, None)
        self.repetitions.forget(process)
        if stay is None:
            return
        for each in (stay, *self._further_stays.pop(process, {}).values()):
            lane = self._lanes[each.lane]
            lane.forget(process)
            ended, reset = each.ended, lane.reset_before(inf)
            if ended is not None and (reset is None or not reset.ended_work(each.arrived, ended)):
                before = lane.forgotten or Forgotten(ended, ended, each.arrived, each.uid, each.kept)
                lane.forgotten = before.with_one_more(ended, each)
        there = self._by_pid[process.pid]
        del there[process]
        if not there:
            del self._by_pid[process.pid]

    def stay(self, process: ProcessKey | None, at: float | None = None) -> ClientStay | None:
        """Return the presence of a client, by its identity: where its work is, or was at a time."""
        if process is None:
            return None
        own = self._stays.get(process)
        if own is None:
            return None
        lane = own.lane
        for left, _, to in sorted(self._went_over.get(process, ())):
            if at is None or at > left:
                lane = to
        return self._further_stays.get(process, {}).get(lane, own)

    def lanes_of(self, process: ProcessKey, at: float) -> frozenset[str]:
        """Return the lanes that a client was on at a time: two of one with a second driver."""
        own = self._stays.get(process)
        stays = (own, *self._further_stays.get(process, {}).values()) if own is not None else ()
        return frozenset(stay.lane for stay in stays if stay.was_there(at))

    def all(self) -> tuple[ClientStay, ...]:
        """Return the presences of all clients, in the order of their identities; two of one with a second driver."""
        further = [stay for stays in self._further_stays.values() for stay in stays.values()]
        return tuple(sorted([*self._stays.values(), *further], key=lambda stay: stay.process))

    def told_to_end(self, server: int, lane: str | None) -> bool:
        """Return whether the guard told a server of a lane to end."""
        return lane in self._lanes and server in self._lanes[lane].told_to_end

    def of_pid(self, pid: int, at: float) -> ClientStay | None:
        """Return the presence of the client that had a pid at a time."""
        stays = (self.stay(process, at) for process in sorted(self._by_pid.get(pid, ())))
        return next((stay for stay in stays if stay is not None and stay.was_there(at)), None)

    def present(self, at: float, lane: str | None) -> tuple[ClientStay, ...]:
        """Return the clients that lived at a time, on one lane or on any, in the order of their identities."""
        if lane is not None and lane not in self._lanes:
            return ()
        if lane is None:
            known = (self.stay(process, at) for process in self._stays)
            there = [stay for stay in known if stay is not None and stay.was_there(at)]
        else:
            there = self._lanes[lane].present(at)
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
        return started is not None and not known.has_ended(started, at + END_LAG)

    def work_left(self, stay: ClientStay, fault: Evidence, now: float) -> str:
        """Return why work of an earlier client may have caused a fault in a client's queue; "" if none can have.

        Without another client, the server does not notice work that an ended client left on the GPU, and the work may
        fault in a later client's queue. It has faulted before then, when its address space was taken apart, and the
        kernel log has a line of that (H200, H100; 580.159.04). Not if the address space was kept; and a process that
        shares the client's files keeps it unseen, so that only the client's own user is believed not to have done that.
        The end of a client is observed up to END_LAG later.

        Args:
            stay: the client.
            fault: the fault.
            now: time of the judgement.
        """
        known = self._lanes[stay.lane]
        just_before = nextafter(stay.arrived, -inf)

        def alone(first: float, last: float) -> bool:
            """Return whether there may have been no client at some time between ``first`` and ``last``."""
            alive = known.alive_until(min(first, just_before))
            return max(alive.ended, now if alive.any_lives else -inf) - END_LAG < last

        # A server that cleans up ends the work of all its clients, even of those that end later.
        reset = known.reset_before(stay.arrived)
        served = -inf if reset is None else reset.began - SERVED_LAG
        gone = [
            _Gone(
                each.arrived, max(each.arrived, end), end + END_LAG, f"process {each.process.pid}", each.uid, each.kept
            )
            for each in known.arrived(served, stay.arrived)
            if each.process != stay.process
            and (end := (now if each.until is None else each.until) - END_LAG) <= stay.arrived
            and alone(end, min(end + END_LAG, stay.arrived))
        ]
        past = known.forgotten
        if past is not None and alone(past.ended - END_LAG, stay.arrived):
            gone.append(_Gone(past.arrived, past.ended - END_LAG, past.last_ended, "a client", past.uid, past.kept))
        found = known.found_at_work()
        if found is not None and found <= stay.arrived and alone(found + END_LAG, stay.arrived):
            gone.append(_Gone(found, None, found, "a client that came before this guard", None, False))
        left = [each for each in gone if reset is None or not reset.ended_work(each.arrived, each.ended)]
        doubts = [(each, why) for each in left if (why := self._doubt(each, stay, fault))]
        if not doubts:
            return ""
        last, why = max(doubts, key=lambda doubt: doubt[0].arrived)
        return f"{last.name} had left the lane empty, and {why}"

    def kernel_log_was_read(self, since: float, until: float) -> bool:
        """Return whether all that the kernel logged between two times is known."""
        return self._log.was_read(since, until)

    def _doubt(self, gone: _Gone, stay: ClientStay, fault: Evidence) -> str:
        """Return why a client that has ended may have left work that faulted now; "" if it cannot have."""
        if gone.since is None:
            return "what happened then is not known"
        at = when(fault)
        if at < gone.ended + LINE_LAG:
            return "the kernel log may have had no line of its work yet"
        if self._log.had_fault(gone.since, at, fault.gpu):
            return "the kernel log tells of a memory fault since"
        if gone.kept:
            return "its address space was kept, so that its work may not have faulted before"
        if gone.uid != stay.uid:
            return "another user may have kept its address space, so that its work has not faulted before"
        return "" if self._log.was_read(gone.since, at) else "the kernel log since then is not known to be whole"

    def _serves(self, pid: int, lane: str | None) -> None:
        servers = self._servers if lane is None else self._lane(lane).servers
        self._known_servers += pid not in servers
        remember(servers, pid)

    def _lane(self, name: str) -> LaneHistory:
        return self._lanes.setdefault(name, LaneHistory())

    def _left(self, process: ProcessKey, lane: str) -> float | None:
        """Return when a client went over from a lane for good; None if it did not, or has come back.

        Between the two it counts as one that is there: a client more accuses none.
        """
        left = max((at for at, was, _ in self._went_over.get(process, ()) if was == lane), default=None)
        back = left is not None and any(to == lane and at > left for at, to in self._arrivals.get(process, ()))
        return None if back else left

    def _put_stay(self, stay: ClientStay) -> None:
        """Enter a client's own stay, and those of its further drivers."""
        process = stay.process
        before = self._stays.get(process)
        for each in (*(() if before is None else (before,)), *self._further_stays.pop(process, {}).values()):
            self._lanes[each.lane].drop(process)
        self._stays[process] = own = msgspec.structs.replace(stay, left=self._left(process, stay.lane))
        self._lane(own.lane).put(own)
        further = {lane for _, lane in self._arrivals.get(process, ()) if lane != own.lane}
        for lane in sorted(further):
            arrived = min(at for at, to in self._arrivals[process] if to == lane)
            second = msgspec.structs.replace(
                own,
                lane=lane,
                arrived=max(arrived, own.arrived),
                left=self._left(process, lane),
                spare_until=min(
                    (at for at, _, to in self._went_over.get(process, ()) if to == lane), default=float("inf")
                ),
            )
            self._further_stays.setdefault(process, {})[lane] = second
            self._lane(lane).put(second)
        self._by_pid.setdefault(process.pid, {})[process] = None
