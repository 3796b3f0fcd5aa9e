"""Remedy resolver: finds the domain of an incident, and with it the policy and the remedies to apply."""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from mpsguard.guard.config import Remedies, RemedyName
from mpsguard.guard.incident import Incident
from mpsguard.guard.incidents.domain_view import DomainView
from mpsguard.guard.remedies.policy import Standing
from mpsguard.guard.remedies.remedy import Remedy
from mpsguard.guard.remedies.terminate import Terminate
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import procfs


def remedies_of(domain: DomainView) -> Mapping[RemedyName, Remedy]:
    """Return all remedies, for one domain."""
    remedies: Final[tuple[Remedy, ...]] = (
        Terminate(domain.lanes_of, domain.clients.handle, domain.settings.policy.command_deadline),
    )
    return {remedy.name: remedy for remedy in remedies}


def domain_of(
    incident: Incident, of_client: Callable[[ProcessKey], str | None], of_lane: Callable[[str], str | None]
) -> str | None:
    """Return the culprit's domain, else the lane's, else the only domain of the clients involved, else None."""
    if incident.culprit is not None and incident.culprit.process is not None:
        theirs = of_client(incident.culprit.process)
        if theirs is not None:
            return theirs
    if incident.lane is not None:
        return of_lane(incident.lane)
    concerned = (suspect.process for suspect in (*incident.candidates, *incident.victims, *incident.survived))
    domains = {of_client(process) for process in concerned if process is not None} - {None}
    return domains.pop() if len(domains) == 1 else None


class DomainRemedies(msgspec.Struct, frozen=True):
    """The remedies of one domain."""

    domain: str
    remedies: Remedies
    """As configured."""
    by_name: Mapping[RemedyName, Remedy]


class RemedyResolver:
    """Tells under which domain's policy an incident is. Looks into the domains of a guard; owns nothing."""

    def __init__(self, domains: Mapping[str, DomainView]) -> None:
        self._domains = domains
        self._remedies = {name: remedies_of(domain) for name, domain in domains.items()}

    def of(self, incident: Incident) -> DomainRemedies | None:
        """Return the remedies of the domain that the incident belongs to; None where that is not known."""
        name = domain_of(incident, self._domain_with_client, self._domain_with_lane)
        if name is None:
            return None
        return DomainRemedies(name, self._domains[name].settings.remedies, self._remedies[name])

    def standing(self, process: ProcessKey) -> Standing:
        """Return what is known of a process now."""
        running = procfs.state(process.pid) not in (None, "Z", "X")
        if running and self._domain_with_client(process) is not None:
            return Standing.CLIENT
        # Its start time is not asked for, which may take as long as the process decides: a process that has the pid of
        # one that has ended is a stranger, too.
        return Standing.STRANGER if running else Standing.ENDED

    def _domain_with_client(self, process: ProcessKey) -> str | None:
        return next((name for name, domain in self._domains.items() if domain.clients.get(process) is not None), None)

    def _domain_with_lane(self, lane: str) -> str | None:
        return next((name for name, domain in self._domains.items() if domain.lanes.named(lane) is not None), None)
