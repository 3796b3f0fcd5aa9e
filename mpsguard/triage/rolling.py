"""Triage as evidence comes: each judgement looks at what is recent, and what is older is kept as what came of it.

Work grows with what happened, for what is judged together is bounded in time and in number. Each owner (a user, a lane,
the kernel) has a share of it. What an owner brings beyond its share is not judged, and counted: it can only blunt what
is said of itself, for a client's faults count as its user's, and a server's words as its lane's.

Pure: the clock is an argument.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from mpsguard.evidence import ClientCame, Evidence, LaneChanged, ProcessEnded, ServerSays
from mpsguard.incident import Confidence, FaultClass, Ground, Incident
from mpsguard.triage.client_history import ClientHistory
from mpsguard.triage.evidence_group import BEFORE, ECHO, Parts, identity, is_anchor, rank
from mpsguard.triage.past import Past
from mpsguard.triage.verdict import Judgement, judge

HORIZON: Final = 30.0
"""Seconds for which a fault's evidence is judged anew with what comes: a GPU core dump takes up to 10 s, a line of the
kernel log came 0.15 s late at most."""

_END_HORIZON: Final = 5.0
"""Seconds for which the end of a client waits for a sign of what its work did: 0.15 s were seen."""

_DEPARTED: Final = 90.0
"""Seconds for which it is remembered that a client was there: longer than any fault's aftermath."""

_SHARE: Final = 160
"""Signs and ends of one owner that are judged together; a GPU has 60 MPS clients at most, a fault some 5 signs."""

_MOST: Final = 480
"""Signs and ends of all owners; a judgement of that many takes some milliseconds."""

_SHARE_OTHERS: Final = 768
"""What joins an episode of one owner: a server tells of each client that it tears down."""

_MOST_OTHERS: Final = 2048

_SHARE_DEPARTED: Final = 1024
"""Ended clients of one user that are remembered."""

_MOST_DEPARTED: Final = 4096

_KNOWN: Final = 2000
"""Incidents that may still change; the oldest are final first."""

_Placed = tuple[tuple[float, str, bytes], Evidence]


class _Kept(NamedTuple):
    part: int
    placed: _Placed
    owner: str


class Change(msgspec.Struct, frozen=True):
    """An incident is new, or there is more or another thing to say of it."""

    key: int
    """The incident's, for as long as it may change."""
    incident: Incident
    new: bool
    verdict: bool
    """Whether the verdict is another one than before: a new revision."""


class RollingTriage:
    """Owns the recent evidence, and what is remembered of older."""

    def __init__(self) -> None:
        self.population = ClientHistory()
        self._past = Past()
        self._placed: tuple[list[_Placed], list[_Placed], list[_Placed], list[_Placed]] = ([], [], [], [])
        """Signs, ends, zones, others."""
        self._kept: dict[tuple[str, object], _Kept] = {}
        self._counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        """Of each owner: signs and ends; others."""
        self._departed: OrderedDict[str, deque[tuple[float, Evidence]]] = OrderedDict()
        self._known: OrderedDict[int, Incident] = OrderedDict()
        self._signs: dict[int, set[tuple[str, object]]] = {}
        self._by_sign: dict[tuple[str, object], list[int]] = {}
        self._next = 1
        self._judged: list[Judgement] = []
        self.shed: Counter[str] = Counter()
        """What was not judged, by owner: beyond its share."""

    def owner(self, evidence: Evidence) -> str:
        """Whose share an observation is of."""
        what = evidence.what
        if isinstance(what, ClientCame):
            return f"user {what.uid}"
        if evidence.process is not None:
            member = self.population.member(evidence.process)
            return f"user {member.uid if member is not None else None}"
        if isinstance(what, ServerSays | LaneChanged):
            return f"lane {what.lane}"
        return "kernel"

    def add(self, evidence: Evidence) -> bool:
        """Take in one observation; whether it may change what is to be said."""
        owner = self.owner(evidence)
        self.population.add(evidence)
        if isinstance(evidence.what, ProcessEnded):
            self._departed.setdefault(owner, deque()).append((evidence.observed_at, evidence))
        index = _part(evidence)
        if index is None:
            return bool(self._placed[_SIGNS])
        name = identity(evidence)
        known = self._kept.get(name)
        placed = rank(evidence), evidence
        if known is not None:
            if placed[0] >= known.placed[0]:
                return False
            self._remove(evidence)
        counts, most, share = self._counts[index == _OTHERS], *_LIMITS[index == _OTHERS]
        if counts[owner] >= share or counts.total() >= most:
            self.shed[owner] += 1
            return False
        counts[owner] += 1
        insort(self._placed[index], placed, key=lambda one: one[0])
        self._kept[name] = _Kept(index, placed, owner)
        return bool(self._known) or is_anchor(evidence)

    def judge(self, now: float) -> tuple[list[Change], bool]:
        """What is to be said anew; and whether there will be something to say when nothing more happens for BEFORE."""
        self._settle(now)
        self._forget(now)
        parts = Parts(*([evidence for _, evidence in placed] for placed in self._placed))
        judged = judge(parts, self.population, self._past, now)
        changes: list[Change] = []
        open_question = False
        for judgement in judged:
            for incident in judgement.incidents:
                change = self._change(incident)
                if change is not None:
                    changes.append(change)
                open_question |= now - incident.ended < BEFORE and (
                    incident.confidence is Confidence.UNKNOWN
                    or incident.ground is Ground.UVM_QUEUE_NEWCOMER
                    or (incident.fault_class is FaultClass.PROCESS and incident.work_in_flight is None)
                )
        self._judged = judged
        return changes, open_question

    def _change(self, incident: Incident) -> Change | None:
        """Tell a known incident from a new one by the signs it has."""
        signs = [identity(each) for each in incident.evidence if is_anchor(each)]
        key = next(
            (key for sign in signs for key in self._by_sign.get(sign, ()) if _may_be(self._known[key], incident)), None
        )
        before = None if key is None else self._known[key]
        if before is not None:
            changed = _verdict(before) != _verdict(incident)
            incident = msgspec.structs.replace(incident, revision=before.revision + changed)
            if incident == before:
                return None
        else:
            changed = True
        if key is None:
            key = self._next
            self._next += 1
        self._known[key] = incident
        theirs = self._signs.setdefault(key, set())
        for sign in signs:
            if sign not in theirs:
                theirs.add(sign)
                self._by_sign.setdefault(sign, []).append(key)
        return Change(key, incident, before is None, changed)

    def _settle(self, now: float) -> None:
        """Keep of what is too old what came of it, as it was judged last."""
        for judgement in self._judged:
            ends_only = all(isinstance(each.what, ProcessEnded) for each in judgement.evidence)
            latest = max(each.observed_at for each in judgement.evidence)
            if latest < now - (_END_HORIZON if ends_only else HORIZON):
                for remembered in judgement.remembered:
                    self._past.add(*remembered)
                for each in judgement.evidence:
                    self._remove(each)

    def _forget(self, now: float) -> None:
        self._past.forget(now)
        for each in list(self._old(now)):
            self._remove(each)
        total = sum(map(len, self._departed.values()))
        for owner, departed in list(self._departed.items()):
            while departed and (departed[0][0] < now - _DEPARTED or len(departed) > _SHARE_DEPARTED):
                self._forget_client(departed)
                total -= 1
            if not departed:
                del self._departed[owner]
        while total > _MOST_DEPARTED:
            self._forget_client(max(self._departed.values(), key=len))
            total -= 1
        while self._known and (
            len(self._known) > _KNOWN or next(iter(self._known.values())).ended < now - HORIZON - ECHO
        ):
            key, _ = self._known.popitem(last=False)
            for sign in self._signs.pop(key):
                keys = self._by_sign[sign]
                keys.remove(key)
                if not keys:
                    del self._by_sign[sign]

    def _old(self, now: float) -> Iterator[Evidence]:
        """What joins no episode any more: what makes one leaves with its judgement, unless nothing was made of it."""
        yield from (each for _, each in self._placed[_OTHERS] if each.observed_at < now - HORIZON - ECHO)
        signs = [place[0] for place, _ in self._placed[_SIGNS]]
        for place, end in self._placed[_ENDS]:
            if is_anchor(end):
                continue
            reach = bisect_left(signs, place[0] - ECHO) < bisect_right(signs, place[0] + BEFORE)
            if end.observed_at < now - (HORIZON + ECHO if reach else _END_HORIZON):
                yield end

    def _forget_client(self, departed: deque[tuple[float, Evidence]]) -> None:
        _, evidence = departed.popleft()
        assert evidence.process is not None
        self.population.forget(evidence.process)

    def _remove(self, evidence: Evidence) -> None:
        kept = self._kept.pop(identity(evidence), None)
        if kept is None:
            return
        part = self._placed[kept.part]
        del part[bisect_left(part, kept.placed[0], key=lambda one: one[0])]
        counts = self._counts[kept.part == _OTHERS]
        counts[kept.owner] -= 1
        if counts[kept.owner] <= 0:
            del counts[kept.owner]


_SIGNS, _ENDS, _ZONES, _OTHERS = range(4)
_LIMITS: Final = ((_MOST, _SHARE), (_MOST_OTHERS, _SHARE_OTHERS))


def _part(evidence: Evidence) -> int | None:
    parts = Parts([], [], [], [])
    found = parts.part(evidence)
    everything = (parts.signs, parts.ends, parts.zones, parts.others)
    return next((index for index, part in enumerate(everything) if part is found), None)


def _may_be(before: Incident, incident: Incident) -> bool:
    """Whether two verdicts on the same signs are on one happening: no other culprit stands between them."""
    return not (before.culprit and incident.culprit and before.culprit != incident.culprit)


def _verdict(incident: Incident) -> tuple[object, ...]:
    """What of an incident is worth telling again when it changes."""
    return (
        incident.fault_class,
        incident.culprit,
        incident.candidates,
        incident.victims,
        incident.confidence,
        incident.ground,
        incident.work_in_flight,
    )
