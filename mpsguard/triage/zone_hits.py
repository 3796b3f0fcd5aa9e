"""Accesses outside an allocation that a zone absorbed: an incident each, with a culprit and nobody hit.

They take no part in episodes: nothing follows from them, and what else happens at the time has another cause.
"""

from mpsguard.evidence import Evidence, ZoneHit
from mpsguard.incident import FaultClass, Ground, Incident
from mpsguard.triage.client_history import ClientHistory, when
from mpsguard.triage.grounds import GROUNDS


def incident(evidence: Evidence, population: ClientHistory) -> Incident:
    """That of one access told of; a sensor tells of the first in each region."""
    hit = evidence.what
    assert isinstance(hit, ZoneHit)
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
        confidence=GROUNDS[Ground.ZONE].confidence,
        ground=Ground.ZONE,
        reason=f"A {hit.access} at {where} of its allocation {hit.region} ({hit.size} bytes): a zone absorbed it, "
        "and nobody was hurt.",
        xids=(),
        evidence=(evidence,),
    )
