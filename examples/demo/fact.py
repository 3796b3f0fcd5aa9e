"""What a scene observed, and what the tour had expected to observe."""

import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.gpu.core.events import FAILED, Outcome

NO_COUNTERPART: Final = "-"
"""A cell of the table for which there is nothing to observe."""


@dataclass(frozen=True)
class Fact:
    """One observation. `text` is made of what was measured, and `harm` says whether a program came to harm in it."""

    text: str
    harm: bool
    as_expected: bool
    expected: str
    """What the tour had expected, if that says more than the text, for a run in which it did not come so."""

    def __str__(self) -> str:
        if self.as_expected:
            return self.text
        return f"UNEXPECTED: {self.text}" + (f" (expected: {self.expected})" if self.expected else "")


Cell = Sequence[Fact]
"""What one scene observed on one side."""


def not_observed(why: str) -> Fact:
    """A scene that could not be played to its end."""
    return Fact(f"not observed: {why}", harm=True, as_expected=False, expected="")


def fate(outcome: Outcome) -> str:
    """How a client ended, in two or three words."""
    if outcome.ok:
        return "served"
    if outcome.find(FAILED):
        return f"refused, error {outcome.code}"
    if outcome.code:
        return f"died, error {outcome.code}"
    if outcome.exit_status < 0:
        return f"killed by {signal.Signals(-outcome.exit_status).name}"
    return f"ended with status {outcome.exit_status}"


def tally(fates: Sequence[str]) -> str:
    """How many met which fate, the most frequent first: `2 of 3 died, error 719; 1 of 3 served`."""
    return "; ".join(f"{count} of {len(fates)} {fate}" for fate, count in Counter(fates).most_common())
