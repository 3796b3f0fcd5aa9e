"""When a migration copies another round, hands over, or is given up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.images.migration.rounds import CopyRound, MigrationLimits, NextStep, next_step

GIB = 1 << 30


def rounds(*copied: float, rate: float = 50e9) -> list[CopyRound]:
    return [CopyRound(round(each * GIB), each * GIB / rate) for each in copied]


@pytest.mark.parametrize(
    ("copied", "pause", "expected"),
    [
        ((20,), None, NextStep.COPY),
        ((20, 2, 0.2), None, NextStep.COPY),
        ((20, 2, 0.2, 0.02), None, NextStep.HAND_OVER),
        ((20, 2, 0.2, 0.02), 0.1, NextStep.HAND_OVER),
        # A program that writes as fast as it is copied: no nearer, three rounds long.
        ((20, 19), None, NextStep.COPY),
        ((20, 19, 19), None, NextStep.HAND_OVER),
        ((20, 19, 19), 0.1, NextStep.GIVE_UP),
        ((4, 4, 4), 0.1, NextStep.HAND_OVER),
        # Slowly nearer, until the rounds are used up.
        ((20, 16, 12, 10, 8, 6, 5), 0.1, NextStep.COPY),
        ((20, 16, 12, 10, 8, 6, 5, 4.8), 0.1, NextStep.GIVE_UP),
        ((0,), 0.0, NextStep.HAND_OVER),
    ],
)
def test_the_step_after_some_rounds(copied: tuple[float, ...], pause: float | None, expected: NextStep) -> None:
    assert next_step(rounds(*copied), MigrationLimits(pause=pause)) is expected


@given(st.lists(st.floats(0, 40), min_size=8, max_size=20), st.integers(1, 8), st.none() | st.floats(0, 1))
def test_every_migration_ends(copied: list[float], most: int, pause: float | None) -> None:
    limits = MigrationLimits(rounds=most, pause=pause)
    made = rounds(*copied)
    steps = [next_step(made[: count + 1], limits) for count in range(most)]
    assert NextStep.COPY not in steps[-1:]
    if pause is None:
        assert NextStep.GIVE_UP not in steps
