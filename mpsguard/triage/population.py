"""Who was on a lane when: what the evidence says of clients coming and ending."""

from collections.abc import Iterable

import msgspec

from mpsguard.evidence import ClientCame, Evidence, ProcessEnded
from mpsguard.incident import Suspect
from mpsguard.model import ProcessKey


def when(evidence: Evidence) -> float:
    """The best that is known of when it happened."""
    return evidence.observed_at if evidence.happened_at is None else evidence.happened_at


class Member(msgspec.Struct, frozen=True):
    """One client's time on its lane."""

    process: ProcessKey
    lane: str
    came: float
    ended: float | None

    def was_there(self, at: float) -> bool:
        """Whether it lived at a time; the moment of its end counts."""
        return self.came <= at and (self.ended is None or self.ended >= at)


class Population:
    """All clients that a stretch of evidence tells of."""

    def __init__(self, evidence: Iterable[Evidence]) -> None:
        came: dict[ProcessKey, tuple[float, str]] = {}
        ended: dict[ProcessKey, float] = {}
        for each in evidence:
            if each.process is None:
                continue
            if isinstance(each.what, ClientCame):
                first = came.get(each.process)
                if first is None or when(each) < first[0]:
                    came[each.process] = (when(each), each.what.lane)
            elif isinstance(each.what, ProcessEnded):
                ended[each.process] = when(each)
        self._members = {process: Member(process, lane, at, ended.get(process)) for process, (at, lane) in came.items()}

    def member(self, process: ProcessKey | None) -> Member | None:
        """A client by its identity."""
        return self._members.get(process) if process is not None else None

    def all(self) -> tuple[Member, ...]:
        """Every client, in the order of their identities."""
        return tuple(sorted(self._members.values(), key=lambda member: member.process))

    def of_pid(self, pid: int, at: float) -> Member | None:
        """The client that had a pid at a time."""
        return next((m for m in self._members.values() if m.process.pid == pid and m.was_there(at)), None)

    def present(self, at: float, lane: str | None) -> tuple[Member, ...]:
        """The clients that lived at a time, on one lane or on any, in the order of their identities."""
        there = (m for m in self._members.values() if m.was_there(at) and lane in (None, m.lane))
        return tuple(sorted(there, key=lambda member: member.process))

    def suspect(self, process: ProcessKey) -> Suspect:
        """A process as it stands in an incident."""
        return Suspect(process.pid, process, process in self._members)
