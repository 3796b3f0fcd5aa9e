"""Accesses outside an allocation that a zone absorbed: an incident each, with a culprit and nobody hit.

They take no part in episodes: nothing follows from them, and what else happens at the time has another cause.
"""

from collections.abc import Iterable

from mpsguard.evidence import Evidence, ZoneHit
from mpsguard.incident import Confidence, FaultClass, Incident
from mpsguard.triage.population import Population, when


def incidents(evidence: Iterable[Evidence], population: Population) -> list[Incident]:
    """One for each access told of; a sensor tells of the first in each region."""
    return [
        _incident(each, each.what, population)
        for each in evidence
        if isinstance(each.what, ZoneHit) and each.process is not None
    ]


def _incident(evidence: Evidence, hit: ZoneHit, population: Population) -> Incident:
    assert evidence.process is not None
    member = population.member(evidence.process)
    where = f"{-hit.beyond} bytes before the start" if hit.beyond < 0 else f"byte {hit.beyond} behind the end"
    return Incident(
        fault_class=FaultClass.MMU,
        began=when(evidence),
        ended=evidence.observed_at,
        gpu=evidence.gpu,
        lane=member.lane if member is not None else None,
        culprit=population.suspect(evidence.process),
        candidates=(),
        victims=(),
        confidence=Confidence.PROVEN,
        reason=f"A {hit.access} at {where} of its allocation {hit.region} ({hit.size} bytes): a zone absorbed it, "
        "and nobody was hurt.",
        xids=(),
        evidence=(evidence,),
    )
