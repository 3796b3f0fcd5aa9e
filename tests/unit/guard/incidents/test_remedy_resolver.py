"""The policy that applies to an incident."""

import msgspec
import pytest

from mpsguard.guard.incident import Confidence, FaultClass, Incident, Suspect
from mpsguard.guard.incidents.remedy_resolver import domain_of
from mpsguard.linux.identity import ProcessKey

HOMES = {ProcessKey(1, 1): "a", ProcessKey(2, 1): "a", ProcessKey(3, 1): "b"}
LANES = {"a-0": "a", "b-0": "b"}
NOBODYS = Incident(FaultClass.SM, 1.0, 2.0, None, None, None, (), (), Confidence.UNKNOWN, "", (), ())


@pytest.mark.parametrize(
    ("culprit", "lane", "candidates", "victims", "domain"),
    [
        (3, "a-0", (1,), (2,), "b"),
        (None, "a-0", (3,), (), "a"),
        (None, None, (1, 2), (1, 2), "a"),
        (None, None, (), (3, 9), "b"),
        (None, None, (1, 3), (), None),
        (None, None, (), (), None),
        (9, None, (), (1,), "a"),
        (None, "of nobody", (), (), None),
    ],
)
def test_the_culprits_then_the_lanes_then_that_of_all_concerned(
    culprit: int | None, lane: str | None, candidates: tuple[int, ...], victims: tuple[int, ...], domain: str | None
) -> None:
    def suspect(pid: int) -> Suspect:
        return Suspect(pid, ProcessKey(pid, 1), True)

    incident = msgspec.structs.replace(
        NOBODYS,
        lane=lane,
        culprit=None if culprit is None else suspect(culprit),
        candidates=tuple(map(suspect, candidates)),
        victims=tuple(map(suspect, victims)),
    )
    assert domain_of(incident, HOMES.get, LANES.get) == domain


def test_a_process_known_by_pid_alone_has_no_domain() -> None:
    nobody = msgspec.structs.replace(NOBODYS, candidates=(Suspect(1, None, False),))
    assert domain_of(nobody, HOMES.get, LANES.get) is None
