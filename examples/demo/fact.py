"""Observations of a scene, with what the tour expected."""

import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.bench.core.events import FAILED, Outcome

NO_COUNTERPART: Final = "-"
"""A cell of the table without an observation."""


@dataclass(frozen=True)
class Fact:
    """One observation. `text` is made from measurements; `harm` says whether a program was harmed."""

    text: str
    harm: bool
    as_expected: bool
    expected: str
    """The expected text if it differs, printed with an unexpected observation."""

    def __str__(self) -> str:
        if self.as_expected:
            return self.text
        return f"UNEXPECTED: {self.text}" + (f" (expected: {self.expected})" if self.expected else "")


Cell = Sequence[Fact]
"""Observations of one scene on one side."""


def not_observed(why: str) -> Fact:
    """Return the fact for a scene that could not be completed."""
    return Fact(f"not observed: {why}", harm=True, as_expected=False, expected="")


def fate(outcome: Outcome) -> str:
    """Return how a client ended, in two or three words."""
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
    """Count equal fates, the most frequent first: `2 of 3 died, error 719; 1 of 3 served`."""
    return "; ".join(f"{count} of {len(fates)} {fate}" for fate, count in Counter(fates).most_common())
