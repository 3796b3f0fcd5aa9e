"""Accesses outside an allocation that a zone absorbed: an incident each, with a culprit and without victims.

They join no evidence group: they have no consequences, and other events at the time have another cause.
"""

from mpsguard.guard.evidence import Evidence, ZoneHit
from mpsguard.guard.incident import FaultClass, Ground, Incident
from mpsguard.guard.triage.client_history import ClientHistory, when
from mpsguard.guard.triage.grounds import GROUNDS


def incident(evidence: Evidence, history: ClientHistory) -> Incident:
    """Return the incident of one access; the sensor reports the first access in each region."""
    hit = evidence.what
    assert isinstance(hit, ZoneHit)
    assert evidence.process is not None
    stay = history.stay(evidence.process)
    where = f"{-hit.beyond} bytes before the start" if hit.beyond < 0 else f"byte {hit.beyond} behind the end"
    return Incident(
        fault_class=FaultClass.MMU,
        began=when(evidence),
        ended=evidence.observed_at,
        gpu=evidence.gpu,
        lane=stay.lane if stay is not None else None,
        culprit=history.suspect(evidence.process),
        candidates=(),
        victims=(),
        confidence=GROUNDS[Ground.ZONE].confidence,
        ground=Ground.ZONE,
        reason=f"A {hit.access} at {where} of its allocation {hit.region} ({hit.size} bytes): a zone absorbed it, "
        "and nobody was hurt.",
        xids=(),
        evidence=(evidence,),
    )
