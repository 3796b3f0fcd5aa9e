"""Proven culprits, which are not to go over to another lane to fault again, and proven innocents, which may. Pure."""

from typing import Final

from mpsguard.guard.incident import Confidence, Ground, Incident
from mpsguard.guard.triage.grounds import HARMLESS
from mpsguard.linux.identity import ProcessKey

_CLEARING: Final = {Ground.UVM_QUEUE: 13, Ground.OWN_DUMP: 31}
"""Grounds that clear the others that a fault hit, with the Xid that tells of another kind of fault at the same time.
That a client's repetition faulted clears no other client: theirs may fault, too."""


def proven_culprit(incident: Incident) -> ProcessKey | None:
    """Return the process that is proven to have caused the loss of a lane's work; None if none is."""
    if incident.culprit is None or incident.confidence is not Confidence.PROVEN or incident.ground in HARMLESS:
        return None
    return incident.culprit.process


def proven_innocents(incident: Incident) -> frozenset[ProcessKey]:
    """Return the clients that a fault hit and that are proven not to have caused it."""
    culprit = proven_culprit(incident)
    other = None if incident.ground is None else _CLEARING.get(incident.ground)
    if culprit is None or other is None or other in incident.xids:
        return frozenset()
    hit = (*incident.victims, *incident.survived)
    return frozenset(each.process for each in hit if each.process is not None) - {culprit}
