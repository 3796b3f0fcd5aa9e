"""Repetitions: clients that repeat their lost work alone, outside of MPS, as they say themselves.

The word counts for the client alone. It says when the work of a process is outside of MPS, so that the kernel's lines
on it are about no lane; and with such a line it is evidence (`mpsguard.guard.triage.repeated_alone`).
"""

from collections.abc import Mapping
from math import inf
from typing import Final

import msgspec

from mpsguard.guard.evidence import Evidence, WorkRepeated
from mpsguard.linux.identity import ProcessKey

UNDER_WAY: Final = "under_way"
COMPLETED: Final = "completed"
FAULTED: Final = "faulted"

_LAG: Final = 2.5
"""Seconds by which the guard may read later what a program has said: it looks each two seconds at the latest."""
LONGEST: Final = 30.0
"""Seconds for which a client is believed to be outside of MPS: the preload gives a repetition 20."""


class Repetition(msgspec.Struct, frozen=True):
    """One client's repetition of its work."""

    said: tuple[Evidence, ...]
    """What it said, in order of time."""

    @property
    def began(self) -> float:
        """When it had begun at the latest."""
        return self.said[0].observed_at

    @property
    def outcome(self) -> str:
        """The last word on what became of it."""
        what = self.said[-1].what
        assert isinstance(what, WorkRepeated)
        return what.outcome

    @property
    def over(self) -> float:
        """When it was over at the latest; inf while it is under way."""
        return inf if self.outcome == UNDER_WAY else self.said[-1].observed_at

    def was_under_way(self, at: float) -> bool:
        """Return whether it may have been under way at a time."""
        return self.began - _LAG <= at <= min(self.over, self.began + LONGEST)


class Repetitions:
    """Index of the repetitions in the evidence, which may be added in any order."""

    def __init__(self) -> None:
        self._said: dict[ProcessKey, dict[str, Evidence]] = {}

    def add(self, evidence: Evidence) -> None:
        """Add one observation; most are of another kind. Of two with the same outcome the first one counts."""
        what, process = evidence.what, evidence.process
        if not isinstance(what, WorkRepeated) or process is None:
            return
        said = self._said.setdefault(process, {})
        known = said.get(what.outcome)
        if known is None or evidence.observed_at < known.observed_at:
            said[what.outcome] = evidence

    def any(self) -> bool:
        """Return whether any client has said anything of one."""
        return bool(self._said)

    def of(self, process: ProcessKey | None) -> Repetition | None:
        """Return the repetition of a client; None if it has said nothing of one."""
        said: Mapping[str, Evidence] = self._said.get(process, {}) if process is not None else {}
        if not said:
            return None
        # It says that it has begun before it says what became of it, and is read in that order.
        ordered = sorted(said.values(), key=lambda each: (each.observed_at, each.what != WorkRepeated(UNDER_WAY)))
        return Repetition(tuple(ordered))

    def forget(self, process: ProcessKey) -> None:
        """Remove a client."""
        self._said.pop(process, None)
