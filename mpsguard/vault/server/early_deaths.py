"""Detects writers that end shortly after their promotion.

It relies on the vault's own observation, not on a program's report. Its only state is the promotion of each session's
writer, and the number of consecutive early deaths.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.user_budget import UserBudget
from mpsguard.vault.wire.region import SessionKey

EARLY: Final = 10.0
"""Seconds after its promotion within which a writer's end is early; `mpsguard run` uses the same limit."""

REPORTED_PER_USER: Final = 10
"""Early deaths of one user that are reported at once, and as many again within `WINDOW`. A program that gives up after
five (the default) is reported completely; a user that causes them on purpose cannot flood the event stream. All are
counted."""

WINDOW: Final = 60.0
"""Seconds; see `REPORTED_PER_USER`."""


class EarlyDeath(msgspec.Struct, frozen=True):
    """A promoted writer that ended within `EARLY` seconds."""

    session: SessionKey
    process: ProcessKey
    generation: int
    """Generation of the session in which it wrote."""
    seconds: float
    """Seconds from its promotion to its end."""
    in_a_row: int
    """Consecutive early deaths of promoted writers of this session, including this one."""


class _Row(msgspec.Struct, frozen=True):
    token: int
    promoted_at: float
    deaths: int


class EarlyDeaths:
    """Tracks promotions and ends of writers. Sessions are bounded by the vault's quota, users by the sessions."""

    def __init__(self, on_early_death: Callable[[EarlyDeath], None]) -> None:
        """Start without history.

        Args:
            on_early_death: called as often as `REPORTED_PER_USER` says.
        """
        self.total = 0
        self._on_early_death = on_early_death
        self._rows: dict[SessionKey, _Row] = {}
        self._reports: UserBudget[int] = UserBudget(REPORTED_PER_USER, WINDOW)

    def promoted(self, key: SessionKey, token: int, now: float) -> None:
        """Record that the holder of ``token`` was promoted at time ``now``."""
        before = self._rows.get(key)
        self._rows[key] = _Row(token, now, 0 if before is None else before.deaths)

    def ended(
        self, key: SessionKey, token: int, process: ProcessKey, generation: int, now: float, *, in_order: bool
    ) -> None:
        """Record the end of a writer's lease; ``in_order``: the writer gave it back."""
        row = self._rows.get(key)
        if row is None or row.token != token:
            return
        seconds = now - row.promoted_at
        if in_order or seconds >= EARLY:
            del self._rows[key]
            return
        self.total += 1
        self._rows[key] = _Row(token, row.promoted_at, row.deaths + 1)
        if self._reports.take(key.uid, now):
            self._on_early_death(EarlyDeath(key, process, generation, round(seconds, 3), row.deaths + 1))

    def forget(self, key: SessionKey) -> None:
        """Discard the history of a removed session."""
        self._rows.pop(key, None)
