"""Whose policy an incident is under, and with what it can be treated there."""

from collections.abc import Mapping
from typing import Final

from mpsguard.config import RemedyName
from mpsguard.daemon.domain import Domain
from mpsguard.daemon.executor import Treatment
from mpsguard.incident import Incident
from mpsguard.linux import procfs
from mpsguard.model import ProcessKey
from mpsguard.remedies.policy import Standing
from mpsguard.remedies.remedy import Remedy
from mpsguard.remedies.terminate import Terminate


def remedies_of(domain: Domain) -> Mapping[RemedyName, Remedy]:
    """Every remedy there is, for one domain."""
    remedies: Final[tuple[Remedy, ...]] = (Terminate(domain.lane_of, domain.settings.policy.command_deadline),)
    return {remedy.name: remedy for remedy in remedies}


class Treatments:
    """Looks into the domains of a guard; owns nothing."""

    def __init__(self, domains: Mapping[str, Domain]) -> None:
        self._domains = domains
        self._treatments = {
            name: Treatment(name, domain.settings.remedies, remedies_of(domain)) for name, domain in domains.items()
        }

    def of(self, incident: Incident) -> Treatment | None:
        """That of the culprit's domain, else of the lane's; None where neither is known."""
        culprit = incident.culprit.process if incident.culprit else None
        for name, domain in self._domains.items():
            if culprit is not None and domain.clients.get(culprit) is not None:
                return self._treatments[name]
        for name, domain in self._domains.items():
            if incident.lane is not None and domain.lanes.named(incident.lane) is not None:
                return self._treatments[name]
        return None

    def standing(self, process: ProcessKey) -> Standing:
        """What is known of a process now."""
        if not procfs.is_running(process):
            return Standing.ENDED
        known = any(domain.clients.get(process) is not None for domain in self._domains.values())
        return Standing.CLIENT if known else Standing.STRANGER
