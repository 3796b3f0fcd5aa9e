"""Writers that end shortly after their promotion, not in order: told by the vault's own observation, not by a program.

Pure but for what it remembers: the promotion of each session's writer, and how many ended early in a row.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from mpsguard.model import ProcessKey
from mpsguard.vault.region import SessionKey

EARLY: Final = 10.0
"""Seconds after its promotion within which a writer's end is early: what `mpsguard run` takes for settled."""

TOLD_PER_USER: Final = 10
"""Early deaths of one user that are told in `WINDOW`: a program that gives up after five (the default) is told whole,
and a user that makes them on purpose fills nobody's event stream. All are counted."""

WINDOW: Final = 60.0
"""Seconds; see `TOLD_PER_USER`."""


class EarlyDeath(msgspec.Struct, frozen=True):
    """A writer that was promoted, and ended before `EARLY` seconds were over."""

    session: SessionKey
    process: ProcessKey
    generation: int
    """Of the session when it wrote."""
    seconds: float
    """From its promotion to its end."""
    in_a_row: int
    """Promoted writers of this session that have ended early, with this one, since one did not."""


class _Row(msgspec.Struct, frozen=True):
    token: int
    promoted_at: float
    deaths: int


class EarlyDeaths:
    """Follows promotions and ends. Sessions are bounded by the vault's quota, users by the sessions."""

    def __init__(self, tell: Callable[[EarlyDeath], None]) -> None:
        """``tell`` is called at most `TOLD_PER_USER` times a user and `WINDOW`."""
        self.total = 0
        self._tell = tell
        self._rows: dict[SessionKey, _Row] = {}
        self._told: dict[int, tuple[float, int]] = {}
        """By uid: when the present window began, and how many were told in it."""

    def promoted(self, key: SessionKey, token: int, now: float) -> None:
        """The holder of ``token`` is the writer from ``now`` on."""
        before = self._rows.get(key)
        self._rows[key] = _Row(token, now, 0 if before is None else before.deaths)

    def ended(
        self, key: SessionKey, token: int, process: ProcessKey, generation: int, now: float, *, in_order: bool
    ) -> None:
        """The writer's lease has ended; ``in_order``: it gave it back."""
        row = self._rows.get(key)
        if row is None or row.token != token:
            return
        seconds = now - row.promoted_at
        if in_order or seconds >= EARLY:
            del self._rows[key]
            return
        self.total += 1
        self._rows[key] = _Row(token, row.promoted_at, row.deaths + 1)
        if self._may_tell(key.uid, now):
            self._tell(EarlyDeath(key, process, generation, round(seconds, 3), row.deaths + 1))

    def forget(self, key: SessionKey) -> None:
        """The session is no more."""
        self._rows.pop(key, None)

    def _may_tell(self, uid: int, now: float) -> bool:
        self._told = {each: told for each, told in self._told.items() if now - told[0] < WINDOW}
        begun, count = self._told.get(uid, (now, 0))
        if count >= TOLD_PER_USER:
            return False
        self._told[uid] = (begun, count + 1)
        return True
