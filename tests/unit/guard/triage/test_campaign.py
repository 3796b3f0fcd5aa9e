"""A small campaign of random histories: no innocent is proven, none is ended by a policy that is called safe."""

import random

import pytest

from fault_injection.histories import campaign
from fault_injection.histories.world import history
from mpsguard.guard.triage.judgements import KeptJudgements
from mpsguard.guard.triage.rolling import Change, RollingTriage

HISTORIES = 100
"""`make soak` has 100,000."""


def test_no_innocent_is_proven_or_ended() -> None:
    outcomes = list(campaign.run(7, range(HISTORIES), jobs=1))
    assert len(outcomes) == HISTORIES
    wrong = [f"history {outcome.index}: {line}" for outcome in outcomes for line in outcome.wrong]
    assert not wrong, wrong
    # They are no idle threat: most grounds there are come up.
    assert len({ground for outcome in outcomes for ground in outcome.named}) > 10


def test_a_history_is_made_from_its_seed_alone() -> None:
    first, second = (history(random.Random("1:5")).arrivals() for _ in range(2))
    assert first == second
    assert campaign.one(1, 5) == campaign.one(1, 5)


class Forgetful(RollingTriage):
    """Makes each judgement again each time."""

    def judge(self, now: float) -> tuple[list[Change], bool]:
        self._settled = KeptJudgements()
        return super().judge(now)


def told(rolling: RollingTriage, number: int) -> list[Change]:
    """All changes of a history, judged at each piece of evidence."""
    found: list[Change] = []
    for at, evidence in history(random.Random(f"9:{number}")).arrivals():
        if rolling.add(evidence):
            found += rolling.judge(at)[0]
    return found


@pytest.mark.parametrize("histories", [HISTORIES, pytest.param(3000, marks=pytest.mark.soak)])
def test_a_judgement_that_is_not_made_again_would_be_the_same(histories: int) -> None:
    changes = [(told(RollingTriage(), number), told(Forgetful(), number)) for number in range(histories)]
    assert [kept for kept, _ in changes] == [again for _, again in changes]
    assert sum(len(kept) for kept, _ in changes) > histories
