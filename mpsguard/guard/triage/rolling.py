"""Rolling triage: judges the recent evidence as it arrives, and keeps the outcome of older evidence.

The evidence that is judged together is bounded in time and in number, which bounds the work. Each owner (a user, a
lane, the kernel) has a share of it. Evidence beyond an owner's share is counted and not judged: this can only affect
verdicts on that owner, because a client's faults count as its user's, and a server's log lines as its lane's.

Pure: the clock is an argument.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from mpsguard.guard.evidence import ClientCame, Evidence, LaneChanged, ProcessEnded, ServerEnding, ServerSays
from mpsguard.guard.incident import Confidence, FaultClass, Ground, Incident
from mpsguard.guard.triage.client_history import ClientHistory, when
from mpsguard.guard.triage.evidence_group import BEFORE, ECHO, Parts, identity, is_anchor, rank
from mpsguard.guard.triage.judgements import Judgement, KeptJudgements
from mpsguard.guard.triage.past import Past
from mpsguard.guard.triage.verdict import judge
from mpsguard.linux.user_queue import UserQueue
from mpsguard.linux.user_share import Place, UserShare

HORIZON: Final = 30.0
"""Seconds for which a fault is judged again as evidence arrives: a GPU core dump takes up to 10 s, and a line of the
kernel log was 0.15 s late at most."""

_END_HORIZON: Final = 5.0
"""Seconds for which the end of a client is kept for a sign that its work caused: 0.15 s were seen."""

_DEPARTED: Final = 90.0
"""Seconds for which an ended client is remembered: longer than the aftermath of any fault."""

_SHARE: Final = 160
"""Signs and ends of one owner that are judged together; a GPU has 60 MPS clients at most, a fault some 5 signs."""

_MOST: Final = 480
"""Signs and ends of all owners; a judgement of that many takes some milliseconds."""

_SHARE_OTHERS: Final = 768
"""Other evidence of one owner: a server logs each client that it tears down."""

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
    place: Place


class Change(msgspec.Struct, frozen=True):
    """A new incident, or a change of a known one."""

    key: int
    """Identifies the incident for as long as it may change."""
    incident: Incident
    new: bool
    verdict: bool
    """Whether the verdict changed, which is a new revision."""


class RollingTriage:
    """Owns the recent evidence, and the outcome of older evidence."""

    def __init__(self) -> None:
        self.history = ClientHistory()
        self._past = Past()
        self._settled = KeptJudgements()
        self._placed: tuple[list[_Placed], list[_Placed], list[_Placed], list[_Placed]] = ([], [], [], [])
        """Signs, ends, zones, others."""
        self._kept: dict[tuple[str, object], _Kept] = {}
        self._shares: tuple[UserShare[str], UserShare[str]] = (
            UserShare(_MOST, _SHARE),
            UserShare(_MOST_OTHERS, _SHARE_OTHERS),
        )
        """Of signs and ends, and of other evidence, by owner."""
        self._departed: UserQueue[str, tuple[float, Evidence]] = UserQueue()
        self._known: OrderedDict[int, Incident] = OrderedDict()
        self._signs: dict[int, set[tuple[str, object]]] = {}
        self._by_sign: dict[tuple[str, object], list[int]] = {}
        self._next = 1
        self._judged: list[Judgement] = []
        self.shed: Counter[str] = Counter()
        """Number of observations beyond each owner's share, which were not judged."""

    def owner(self, evidence: Evidence) -> str:
        """Return the owner that an observation counts for."""
        what = evidence.what
        if isinstance(what, ClientCame):
            return f"user {what.uid}"
        if evidence.process is not None:
            stay = self.history.stay(evidence.process)
            return f"user {stay.uid if stay is not None else None}"
        if isinstance(what, ServerSays | LaneChanged | ServerEnding):
            return f"lane {what.lane}"
        return "kernel"

    def add(self, evidence: Evidence) -> bool:
        """Add one observation, and return whether it may change a verdict."""
        owner = self.owner(evidence)
        since = self.history.add(evidence)
        self._settled.changed = min(self._settled.changed, since, when(evidence))
        if isinstance(evidence.what, ProcessEnded):
            self._departed.add(owner, (evidence.observed_at, evidence))
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
        place = self._shares[index == _OTHERS].take(owner)
        if place is None:
            self.shed[owner] += 1
            return False
        insort(self._placed[index], placed, key=lambda one: one[0])
        self._kept[name] = _Kept(index, placed, place)
        return bool(self._known) or is_anchor(evidence)

    def judge(self, now: float) -> tuple[list[Change], bool]:
        """Judge the recent evidence.

        Returns:
            The changes since the last call, and whether a verdict may still change without further evidence, once
            BEFORE seconds have passed.
        """
        self._settle(now)
        self._forget(now)
        parts = Parts(*([evidence for _, evidence in placed] for placed in self._placed))
        judged = judge(parts, self.history, self._past, now, self._settled)
        changes: list[Change] = []
        open_question = False
        for judgement in judged:
            for incident in judgement.incidents:
                change = self._change(incident, judgement.evidence)
                if change is not None:
                    changes.append(change)
                open_question |= now - incident.ended < BEFORE and (
                    incident.confidence is Confidence.UNKNOWN
                    or incident.ground is Ground.UVM_QUEUE_NEWCOMER
                    or (incident.fault_class is FaultClass.PROCESS and incident.work_in_flight is None)
                )
        self._judged = judged
        return changes, open_question

    def _change(self, incident: Incident, anchors: Iterable[Evidence]) -> Change | None:
        """Return the change that an incident makes, if any; what it is judged on tells whether it is known already."""
        signs = [identity(each) for each in anchors]
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
        """Replace evidence that is too old by the incidents of its last judgement."""
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
        departed = self._departed
        for owner in departed.users():
            while departed.of(owner) and (
                departed.first(owner)[0] < now - _DEPARTED or departed.of(owner) > _SHARE_DEPARTED
            ):
                self._forget_client(owner)
        while len(departed) > _MOST_DEPARTED:
            self._forget_client(departed.heaviest())
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
        """Yield the evidence that is too old to join a group; signs leave with their judgement instead."""
        yield from (each for _, each in self._placed[_OTHERS] if each.observed_at < now - HORIZON - ECHO)
        signs = [place[0] for place, _ in self._placed[_SIGNS]]
        for place, end in self._placed[_ENDS]:
            if is_anchor(end):
                continue
            reach = bisect_left(signs, place[0] - ECHO) < bisect_right(signs, place[0] + BEFORE)
            if end.observed_at < now - (HORIZON + ECHO if reach else _END_HORIZON):
                yield end

    def _forget_client(self, owner: str) -> None:
        _, evidence = self._departed.pop_first(owner)
        assert evidence.process is not None
        # Longer ago than any fault that is judged began, but for those that are too many.
        self._settled.changed = min(self._settled.changed, when(evidence))
        self.history.forget(evidence.process)

    def _remove(self, evidence: Evidence) -> None:
        kept = self._kept.pop(identity(evidence), None)
        if kept is None:
            return
        part = self._placed[kept.part]
        del part[bisect_left(part, kept.placed[0], key=lambda one: one[0])]
        kept.place.give_back()


_SIGNS, _ENDS, _ZONES, _OTHERS = range(4)


def _part(evidence: Evidence) -> int | None:
    parts = Parts([], [], [], [])
    found = parts.part(evidence)
    everything = (parts.signs, parts.ends, parts.zones, parts.others)
    return next((index for index, part in enumerate(everything) if part is found), None)


def _may_be(before: Incident, incident: Incident) -> bool:
    """Return whether two verdicts on the same signs may be on one fault: they have no different culprits."""
    return not (before.culprit and incident.culprit and before.culprit != incident.culprit)


def _verdict(incident: Incident) -> tuple[object, ...]:
    """Return the parts of an incident that make a new revision when they change."""
    return (
        incident.fault_class,
        incident.culprit,
        incident.candidates,
        incident.victims,
        incident.survived,
        incident.confidence,
        incident.ground,
        incident.work_in_flight,
    )
