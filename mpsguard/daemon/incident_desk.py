"""The incident desk: takes in evidence as it comes, asks triage what it tells, and says so when that changes."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from mpsguard.daemon.journal import Journal
from mpsguard.evidence import ClientCame, Evidence, ProcessEnded
from mpsguard.incident import Confidence, FaultClass, Incident
from mpsguard.model import Client, ProcessKey
from mpsguard.triage.episode import BEFORE, is_anchor
from mpsguard.triage.verdict import triage

_WINDOW: Final = 90.0
"""Seconds of evidence that are judged together: longer than any fault's aftermath."""

_SETTLED: Final = 60.0
"""Seconds after which a verdict stays: what it stands on begins to be forgotten then, the oldest first."""

_MOST: Final = 2000
"""Observations judged together at most; of a storm the oldest go first. Who is on the lanes is never forgotten."""


class IncidentDesk:
    """Owns the recent evidence. All in one event loop."""

    def __init__(
        self,
        journal: Journal,
        clients: Callable[[], Iterable[Client]],
        publish: Callable[[str, Incident, bool], None],
    ) -> None:
        """``publish`` is told of every new incident (True) and of every change of its verdict (False)."""
        self._journal = journal
        self._clients = clients
        self._publish = publish
        self._recent: deque[Evidence] = deque(maxlen=_MOST)
        self._present: dict[ProcessKey, Evidence] = {}
        self._departed: deque[tuple[float, ProcessKey]] = deque()
        self._known: dict[str, Incident] = {}
        self._judging = False
        self._again: asyncio.TimerHandle | None = None

    def take(self, evidence: Evidence) -> None:
        """Take in one observation; the verdict follows in the same turn of the loop."""
        self._journal.record_evidence(evidence)
        if evidence.process is not None:
            if isinstance(evidence.what, ClientCame):
                self._present[evidence.process] = evidence
            elif isinstance(evidence.what, ProcessEnded):
                self._departed.append((evidence.observed_at, evidence.process))
        self._recent.append(evidence)
        # Everything that is already here is judged at once: a burst of lines costs one look.
        if not self._judging and (self._known or is_anchor(evidence)):
            self._judging = True
            asyncio.get_running_loop().call_soon(self._judge)

    def _judge(self) -> None:
        self._judging = False
        now = time.monotonic()
        self._forget(now - _WINDOW)
        open_question = False
        for incident in triage([*self._present.values(), *self._recent], now):
            self._note(incident)
            open_question |= now - incident.ended < BEFORE and (
                incident.confidence is Confidence.UNKNOWN
                or (incident.fault_class is FaultClass.PROCESS and incident.work_in_flight is None)
            )
        if open_question and self._again is None:
            # That nothing follows is known only when it has not.
            self._again = asyncio.get_running_loop().call_later(BEFORE, self._judge_again)

    def _judge_again(self) -> None:
        self._again = None
        self._judge()

    def close(self) -> None:
        """Judge no more."""
        if self._again is not None:
            self._again.cancel()

    def _forget(self, before: float) -> None:
        while self._recent and self._recent[0].observed_at < before:
            self._recent.popleft()
        while self._departed and self._departed[0][0] < before:
            self._present.pop(self._departed.popleft()[1], None)
        for incident_id, incident in list(self._known.items()):
            if incident.ended < before:
                del self._known[incident_id]

    def _note(self, incident: Incident) -> None:
        """Tell a known incident from a new one by the sign it began with."""
        known = next((key for key, before in self._known.items() if _same(before, incident)), None)
        if known is not None and (self._known[known] == incident or incident.began < time.monotonic() - _SETTLED):
            return
        incident_id = self._journal.record_incident(incident, self._clients(), id=known)
        before = self._known.get(incident_id)
        self._known[incident_id] = incident
        if before is None or _verdict(before) != _verdict(incident):
            self._publish(incident_id, incident, before is None)


def _same(one: Incident, other: Incident) -> bool:
    """Whether two verdicts are about one happening: they share evidence, and no other culprit stands between them."""
    if one.culprit and other.culprit and one.culprit != other.culprit:
        return False
    signs = [sign for sign in one.evidence if is_anchor(sign)]
    return any(sign in signs for sign in other.evidence if is_anchor(sign))


def _verdict(incident: Incident) -> bytes:
    """What of an incident is worth telling again when it changes."""
    return msgspec.json.encode(
        (
            incident.fault_class,
            incident.culprit,
            incident.candidates,
            incident.victims,
            incident.confidence,
            incident.work_in_flight,
        )
    )
