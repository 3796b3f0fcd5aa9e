"""The incident tracker: keeps recent evidence, has triage judge it, and knows which incidents changed."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from mpsguard.guard.evidence import ClientCame, Evidence
from mpsguard.guard.incident import Ground, Incident
from mpsguard.guard.journal.journal import Journal
from mpsguard.guard.model import Client
from mpsguard.guard.triage.rolling import Change, RollingTriage
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.user_budget import UserBudget

_WINDOW: Final = 90.0
"""Seconds in which the shares below come again, evenly."""

_EVIDENCE_SHARE: Final = 5000
"""Observations of one owner that the journal is given at once, and again in that time: a tenth of what it keeps."""

_CRASH_SHARE: Final = 100
"""Incidents of one user, at once and again in that time, that are nothing but the end of a client of its own: a tenth
of what is kept."""

_CLIENTS: Final = 4096
"""Clients that are remembered beyond their end, for the incidents in which they stand; the oldest go first."""


class TrackedIncident(msgspec.Struct, frozen=True):
    """An incident that is new, or has a new verdict."""

    id: str
    """In the journal."""
    incident: Incident
    new: bool


class IncidentTracker:
    """Owns the recent evidence. Writes evidence and incidents to the journal."""

    def __init__(self, journal: Journal, clients: Callable[[], Iterable[Client]]) -> None:
        """``clients`` returns the clients on all lanes now."""
        self._journal = journal
        self._clients = clients
        self._triage = RollingTriage()
        self._evidence_share: UserBudget[str] = UserBudget(_EVIDENCE_SHARE, _WINDOW)
        self._crash_share: UserBudget[str] = UserBudget(_CRASH_SHARE, _WINDOW)
        self._seen: OrderedDict[ProcessKey, Client] = OrderedDict()
        self._ids: OrderedDict[int, str | None] = OrderedDict()
        """Triage's key of an incident to the journal's id; None for one beyond its user's share."""
        self.left_out = 0
        """Incidents and observations that were not kept, being beyond their owner's share."""

    def add(self, evidence: Evidence) -> bool:
        """Record one observation; return whether there is something to judge."""
        if self._evidence_share.take(self._triage.owner(evidence), evidence.observed_at):
            self._journal.record_evidence(evidence)
        else:
            self.left_out += 1
        if isinstance(evidence.what, ClientCame) and evidence.process is not None:
            self._remember(evidence.process)
        return self._triage.add(evidence)

    def judge(self, now: float) -> tuple[list[TrackedIncident], bool]:
        """Judge what was added; record the incidents that changed.

        Returns:
            Those that are new or have a new verdict, and whether a question is open that time alone answers.
        """
        changes, open_question = self._triage.judge(now)
        tracked = (self._track(change) for change in changes)
        return [one for one in tracked if one is not None], open_question

    def _remember(self, process: ProcessKey) -> None:
        client = next((each for each in self._clients() if each.process == process), None)
        if client is not None:
            self._seen[process] = client
            if len(self._seen) > _CLIENTS:
                self._seen.popitem(last=False)

    def _track(self, change: Change) -> TrackedIncident | None:
        incident = change.incident
        known = self._ids.get(change.key)
        if change.new and is_crash(incident) and incident.evidence:
            owner = self._triage.owner(incident.evidence[0])
            if not self._crash_share.take(owner, incident.evidence[0].observed_at):
                self.left_out += 1
                self._ids[change.key] = None
                return None
        if known is None and change.key in self._ids and is_crash(incident):
            return None
        incident_id = self._journal.record_incident(incident, self._clients_in(incident), id=known)
        self._ids[change.key] = incident_id
        while len(self._ids) > _CLIENTS:
            self._ids.popitem(last=False)
        return TrackedIncident(incident_id, incident, new=known is None) if change.verdict else None

    def _clients_in(self, incident: Incident) -> list[Client]:
        """Return the clients that stand in an incident, as they were when they came: some have gone since."""
        suspects = (incident.culprit, *incident.candidates, *incident.victims, *incident.survived)
        named = dict.fromkeys(suspect.process for suspect in suspects if suspect is not None)
        named |= dict.fromkeys(each.process for each in incident.evidence)
        living = {} if self._seen.keys() >= named.keys() - {None} else {each.process: each for each in self._clients()}
        found = (self._seen.get(process) or living.get(process) for process in named if process is not None)
        return [client for client in found if client is not None]


def is_crash(incident: Incident) -> bool:
    """Return whether an incident is nothing but the end of a client that did no harm to others."""
    return incident.ground is Ground.OWN_END
