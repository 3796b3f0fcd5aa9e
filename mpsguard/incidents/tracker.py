"""The incident desk: takes in evidence as it comes, asks triage what it tells, and says so when that changes."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from mpsguard.evidence import ClientCame, Evidence
from mpsguard.incident import Ground, Incident
from mpsguard.journal.journal import Journal
from mpsguard.model import Client, ProcessKey
from mpsguard.triage.evidence_group import BEFORE
from mpsguard.triage.rolling import Change, RollingTriage
from mpsguard.triage.share import Share

_WINDOW: Final = 90.0
"""Seconds over which the shares below are counted."""

_EVIDENCE_SHARE: Final = 5000
"""Observations of one owner that the journal is given in that time: a tenth of what it keeps."""

_CRASH_SHARE: Final = 100
"""Incidents of one user in that time that are nothing but the end of a client of its own: a tenth of what is kept."""

_CLIENTS: Final = 4096
"""Clients that are remembered beyond their end, for the incidents in which they stand; the oldest go first."""


class IncidentTracker:
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
        self._triage = RollingTriage()
        self._evidence_share = Share(_EVIDENCE_SHARE, _WINDOW)
        self._crash_share = Share(_CRASH_SHARE, _WINDOW)
        self._seen: OrderedDict[ProcessKey, Client] = OrderedDict()
        self._ids: OrderedDict[int, str | None] = OrderedDict()
        """Triage's key of an incident to the journal's; None for one beyond its user's share."""
        self._judging = False
        self._again: asyncio.TimerHandle | None = None
        self.left_out = 0
        """Incidents and observations that were not kept, being beyond their owner's share."""

    def take(self, evidence: Evidence) -> None:
        """Take in one observation; the verdict follows in the same turn of the loop."""
        if self._evidence_share.take(self._triage.owner(evidence), evidence.observed_at):
            self._journal.record_evidence(evidence)
        else:
            self.left_out += 1
        if isinstance(evidence.what, ClientCame) and evidence.process is not None:
            self._remember(evidence.process)
        # Everything that is already here is judged at once: a burst of lines costs one look.
        if self._triage.add(evidence) and not self._judging:
            self._judging = True
            asyncio.get_running_loop().call_soon(self._judge)

    def _judge(self) -> None:
        self._judging = False
        changes, open_question = self._triage.judge(time.monotonic())
        for change in changes:
            self._note(change)
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

    def _remember(self, process: ProcessKey) -> None:
        client = next((each for each in self._clients() if each.process == process), None)
        if client is not None:
            self._seen[process] = client
            if len(self._seen) > _CLIENTS:
                self._seen.popitem(last=False)

    def _note(self, change: Change) -> None:
        incident = change.incident
        known = self._ids.get(change.key)
        if change.new and is_crash(incident) and incident.evidence:
            owner = self._triage.owner(incident.evidence[0])
            if not self._crash_share.take(owner, incident.evidence[0].observed_at):
                self.left_out += 1
                self._ids[change.key] = None
                return
        if known is None and change.key in self._ids and is_crash(incident):
            return
        incident_id = self._journal.record_incident(incident, self._parties(incident), id=known)
        self._ids[change.key] = incident_id
        while len(self._ids) > _CLIENTS:
            self._ids.popitem(last=False)
        if change.verdict:
            self._publish(incident_id, incident, known is None)

    def _parties(self, incident: Incident) -> list[Client]:
        """The clients that stand in an incident, as they were when they came: some have gone since."""
        suspects = (incident.culprit, *incident.candidates, *incident.victims)
        named = dict.fromkeys(suspect.process for suspect in suspects if suspect is not None)
        named |= dict.fromkeys(each.process for each in incident.evidence)
        living = {} if self._seen.keys() >= named.keys() - {None} else {each.process: each for each in self._clients()}
        found = (self._seen.get(process) or living.get(process) for process in named if process is not None)
        return [client for client in found if client is not None]


def is_crash(incident: Incident) -> bool:
    """Whether it is nothing but the end of a client that did no harm to others."""
    return incident.ground is Ground.OWN_END
