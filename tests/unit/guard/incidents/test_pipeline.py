"""Which clients have lost their right to a second driver: those that a verdict proves to have ended the lane's work."""

import msgspec
import pytest

from mpsguard.guard.incident import Confidence, FaultClass, Ground, Incident, Suspect
from mpsguard.guard.incidents.pipeline import proven_culprit, proven_innocents
from mpsguard.linux.identity import ProcessKey

CULPRIT = ProcessKey(101, 1010)
PROVEN = Incident(
    fault_class=FaultClass.SM,
    began=1.0,
    ended=1.1,
    gpu=None,
    lane="d-0",
    culprit=Suspect(CULPRIT.pid, CULPRIT, client=True),
    candidates=(),
    victims=(),
    confidence=Confidence.PROVEN,
    reason="",
    xids=(13,),
    evidence=(),
    ground=Ground.OWN_DUMP,
)


def test_a_proven_culprit_is_one() -> None:
    assert proven_culprit(PROVEN) == CULPRIT


@pytest.mark.parametrize("ground", [Ground.ZONE, Ground.CONTAINED, Ground.CONTAINED_PID, Ground.OWN_END])
def test_what_the_lane_outlived_is_held_against_no_client(ground: Ground) -> None:
    assert proven_culprit(msgspec.structs.replace(PROVEN, ground=ground)) is None


def test_a_likely_culprit_may_be_innocent() -> None:
    assert proven_culprit(msgspec.structs.replace(PROVEN, confidence=Confidence.LIKELY)) is None


def test_without_a_culprit_there_is_none() -> None:
    assert proven_culprit(msgspec.structs.replace(PROVEN, culprit=None)) is None


OTHER = ProcessKey(102, 1020)
VICTIM, SURVIVOR = Suspect(OTHER.pid, OTHER, client=True), Suspect(103, ProcessKey(103, 1030), client=True)
HIT = msgspec.structs.replace(PROVEN, victims=(VICTIM,), survived=(SURVIVOR,))


@pytest.mark.parametrize(("ground", "xids"), [(Ground.OWN_DUMP, (13, 43)), (Ground.UVM_QUEUE, (31, 43))])
def test_a_proven_culprit_clears_the_others_that_it_hit(ground: Ground, xids: tuple[int, ...]) -> None:
    incident = msgspec.structs.replace(HIT, ground=ground, xids=xids)
    assert proven_innocents(incident) == {OTHER, SURVIVOR.process}


@pytest.mark.parametrize(
    "change",
    [
        # Each has to repeat its own work.
        {"ground": Ground.REPEATED_ALONE},
        # Two faults at a time.
        {"ground": Ground.UVM_QUEUE, "xids": (13, 31)},
        {"xids": (13, 31)},
        {"confidence": Confidence.LIKELY},
        {"culprit": None},
        {"ground": Ground.ZONE},
    ],
)
def test_otherwise_no_client_is_cleared(change: dict[str, object]) -> None:
    assert proven_innocents(msgspec.structs.replace(HIT, **change)) == frozenset()
