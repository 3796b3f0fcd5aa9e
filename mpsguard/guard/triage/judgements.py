"""Judgements, and those that are kept: most faults of the last half minute are judged alike at each observation."""

from collections.abc import Iterable
from math import inf
from typing import Final

import msgspec

from mpsguard.guard.evidence import Evidence
from mpsguard.guard.incident import Incident
from mpsguard.guard.triage.client_history import when
from mpsguard.guard.triage.evidence_group import EvidenceGroup
from mpsguard.guard.triage.orphaned_work import Unnoticed

_SETTLES: Final = 1.5
"""Seconds after a fault's last evidence in which a judgement may change by itself, or by evidence of a later time:
longer than BEFORE, END_LAG and the servers' and the kernel log's lags, which are half a second at most, and ECHO."""


class Judgement(msgspec.Struct, frozen=True):
    """The incidents of one evidence group, or of one access that a zone absorbed."""

    evidence: tuple[Evidence, ...]
    """Its anchors: signs, ends, or the access."""
    incidents: tuple[Incident, ...]
    """The incidents to publish."""
    remembered: tuple[tuple[Incident, Unnoticed | None], ...]
    """All incidents, for `Past`."""


class KeptJudgements:
    """Owns the last judgements of groups, for those of which nothing can change them any more but other evidence."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[EvidenceGroup, Judgement, float]] = {}
        """With when they were made, by the first anchor: an object that the group keeps."""
        self.changed = inf
        """From when on evidence has come, or what is told of clients and lanes has changed, since they were made."""

    def of(self, group: EvidenceGroup) -> Judgement | None:
        """Return the judgement that would be made again."""
        kept = self._last.get(id(group.anchors[0]))
        if kept is None or kept[0] != group:
            return None
        latest = max(map(when, group.evidence))
        return kept[1] if kept[2] >= latest + _SETTLES and self.changed > latest + _SETTLES else None

    def differs(self, group: EvidenceGroup, judgement: Judgement) -> bool:
        """Return whether the last judgement was another one, or there was none."""
        kept = self._last.get(id(group.anchors[0]))
        return kept is None or kept[1] != judgement

    def replace(self, made: Iterable[tuple[EvidenceGroup, Judgement]], now: float) -> None:
        """Take the judgements of now for the last ones."""
        self._last = {id(group.anchors[0]): (group, judgement, now) for group, judgement in made}
        self.changed = inf
