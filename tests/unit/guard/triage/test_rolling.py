"""Triage as evidence comes: the same verdicts as over all of it, numbered, bounded, and with a share for each owner."""

import msgspec
import pytest

from mpsguard.guard.evidence import Evidence, LaneChanged, Source
from mpsguard.guard.incident import Confidence, Ground, Incident
from mpsguard.guard.model import TOLD_TO_QUIT
from mpsguard.guard.triage.rolling import HORIZON, RollingTriage
from mpsguard.guard.triage.verdict import triage
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.user_budget import UserBudget
from tests.unit.guard.triage.test_recorded import MMU, recorded
from tests.unit.guard.triage.test_verdict import SIGNATURES, A, B, C, came, ended, seen, server, uvm, xid

STORM = 65534


def lived(evidence: list[Evidence], last: float = 1e9) -> dict[int, Incident]:
    """Each incident's last verdict, as a guard comes to it."""
    rolling = RollingTriage()
    found: dict[int, Incident] = {}
    for each in sorted(evidence, key=lambda one: one.observed_at):
        if rolling.add(each):
            found |= {change.key: change.incident for change in rolling.judge(each.observed_at)[0]}
    found |= {change.key: change.incident for change in rolling.judge(last)[0]}
    return found


def of_user(evidence: Evidence, uid: int) -> Evidence:
    return msgspec.structs.replace(evidence, what=msgspec.structs.replace(evidence.what, uid=uid))


def crash(number: int, at: float) -> list[Evidence]:
    process = ProcessKey(1000 + number, number)
    return [of_user(came(process, at), STORM), ended(process, at + 0.01, signal=9)]


def test_it_comes_to_the_verdicts_that_all_the_evidence_gives() -> None:
    for signature in SIGNATURES:
        evidence = [came(A), came(B), came(C), *signature]
        last = max(each.observed_at for each in evidence) + 1
        alive = [msgspec.structs.replace(one, revision=1) for one in lived(evidence, last).values()]
        assert alive == list(triage(evidence, last))


def test_the_recorded_memory_faults_are_named_as_they_come() -> None:
    named = [i.culprit.pid for i in lived(list(recorded())).values() if i.culprit and i.fault_class == "mmu"]
    assert [pid for pid in named if pid in MMU] == list(MMU)
    assert len(named) == len(MMU)


def test_verdicts_on_one_incident_are_numbered() -> None:
    rolling = RollingTriage()
    for each in (came(A), came(B), xid(31, 10.13, B.pid), server("fault_begins", 10.131)):
        rolling.add(each)
    (first,), _ = rolling.judge(10.2)
    assert (first.incident.revision, first.new, first.verdict) == (1, True, True)
    assert rolling.judge(10.2)[0] == []
    assert rolling.add(uvm(A, 10.002))
    (second,), _ = rolling.judge(10.3)
    assert (second.key, second.incident.revision, second.new, second.verdict) == (first.key, 2, False, True)
    assert second.incident.culprit is not None
    # More evidence for the same verdict is no revision.
    rolling.add(xid(43, 10.2, 99))
    (third,), _ = rolling.judge(10.4)
    assert (third.incident.revision, third.verdict) == (2, False)


def test_a_verdict_stays_when_what_it_stands_on_is_forgotten() -> None:
    rolling = RollingTriage()
    for each in (came(A), came(B), uvm(A, 10.0)):
        rolling.add(each)
    assert len(rolling.judge(10.1)[0]) == 1
    assert rolling.judge(10.1 + HORIZON)[0] == []
    assert rolling.judge(11.0 + HORIZON)[0] == []
    # The crash of one that it hit is still no incident of its own.
    rolling.add(ended(B, 45.0, signal=6))
    assert rolling.judge(46.0)[0] == []


def test_a_storm_of_one_user_is_not_judged_beyond_its_share_and_hides_no_other_users_fault() -> None:
    rolling = RollingTriage()
    rolling.add(of_user(came(A, 1.0), 1000))
    for number in range(2000):
        for each in crash(number, 20.0 + number / 1000):
            rolling.add(each)
    assert rolling.shed[f"user {STORM}"] > 1000
    rolling.add(uvm(A, 21.99))
    found = [change.incident for change in rolling.judge(22.0)[0]]
    proven = [one for one in found if one.ground is Ground.UVM_QUEUE]
    assert [one.culprit.process for one in proven if one.culprit] == [A]
    assert len(found) < 400


def test_what_is_kept_is_bounded() -> None:
    rolling = RollingTriage()
    for number in range(3000):
        for each in crash(number, 20.0 + number / 10):
            rolling.add(each)
        if number % 10 == 9:
            rolling.judge(20.1 + number / 10)
    assert len(rolling.history.all()) < 1100


def test_an_orderly_quit_without_clients_is_no_incident_and_any_other_end_of_a_lane_is() -> None:
    quit_ = seen(Source.LANE, 10.1, LaneChanged("default", "default-0", "DOWN", TOLD_TO_QUIT, ()))
    exit_ = server("server_exited", 10.0)
    assert triage([exit_, quit_]) == ()
    assert triage([came(A), ended(A, 5.0, code=0), exit_, quit_]) == ()
    (hit,) = triage([came(A), exit_, quit_])
    assert [victim.pid for victim in hit.victims] == [A.pid]
    down = seen(Source.LANE, 10.1, LaneChanged("default", "default-0", "DOWN", "control daemon 5 ended", ()))
    assert len(triage([down])) == 1


@pytest.mark.parametrize("signature", SIGNATURES)
def test_no_culprit_is_among_its_victims(signature: list[Evidence]) -> None:
    for incident in triage([came(A), came(B), came(C), *signature]):
        if incident.culprit is not None:
            assert incident.culprit.pid not in {victim.pid for victim in incident.victims}
            assert incident.confidence is not Confidence.UNKNOWN


def test_a_share_is_each_owner_s_own_and_comes_again() -> None:
    share: UserBudget[str] = UserBudget(2, 10.0)
    assert [share.take("a", 0.0), share.take("a", 1.0), share.take("a", 2.0), share.take("b", 2.0)] == [
        True,
        True,
        False,
        True,
    ]
    assert share.take("a", 10.0)
