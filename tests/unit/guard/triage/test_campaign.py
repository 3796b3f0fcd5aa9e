"""A small campaign of random histories: no innocent is proven, none is ended by a policy that is called safe."""

import random

from fault_injection.histories import campaign
from fault_injection.histories.world import history

HISTORIES = 300


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
