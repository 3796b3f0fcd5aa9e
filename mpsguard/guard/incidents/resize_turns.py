"""Turns of users for resizes that an objective asks for: a session that takes long holds up its own user's alone.

A resize takes as long as the program takes to start, and the program decides that. So a user has one at a time, several
users have theirs at once, and each has a deadline.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, NamedTuple

from mpsguard.guard.incidents.live_resize import ResizeError
from mpsguard.linux.tasks import Owner
from mpsguard.linux.user_share import Place, UserShare
from mpsguard.vault.wire.region import SessionKey

AT_ONCE: Final = 16
"""Users with a resize under way. Each costs the start of a standby in place of one that was there."""
RESIZE_DEADLINE: Final = 600.0
"""Seconds for one session: a standby with the new share has to start, and a large model takes minutes to load."""
FIRST_PAUSE: Final = 60.0
"""Seconds after a failed resize before that session is tried again; doubled with each failure."""
LONGEST_PAUSE: Final = 3600.0
"""Limit of that: a session that cannot be resized costs a start of a standby each time."""

Resize = Callable[[SessionKey, float], Awaitable[object]]
"""Gives a session a share in percent, and returns when it has it; raises ResizeError."""


class ResizeFailure(NamedTuple):
    """A resize that failed."""

    session: SessionKey
    share: float
    again_in: float
    """Seconds until it may be tried again."""
    why: str


class _Pause(NamedTuple):
    until: float
    seconds: float


class ResizeTurns:
    """Owns the resizes that are under way."""

    def __init__(
        self,
        resize: Resize,
        *,
        done: Callable[[SessionKey, float], None],
        failed: Callable[[ResizeFailure], None],
        over: Callable[[], None],
        deadline: float = RESIZE_DEADLINE,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create it.

        Args:
            resize: see `Resize`.
            done: called with a session that was resized, and its share.
            failed: called for each failure.
            over: called after either, when the user's place is free.
            deadline: seconds for one resize.
            now: seconds of a clock.
        """
        self._resize = resize
        self._done = done
        self._failed = failed
        self._over = over
        self._deadline = deadline
        self._now = now
        self._tasks = Owner()
        self._places: UserShare[int] = UserShare(AT_ONCE, 1)
        """Of users with a resize under way."""
        self._had_turns: dict[int, None] = {}
        """Users that had a turn, the one that waits longest since then first."""
        self._pauses: dict[SessionKey, _Pause] = {}

    def keep(self, sessions: Collection[SessionKey]) -> None:
        """Forget what is known of sessions other than these."""
        users = {key.uid for key in sessions}
        self._pauses = {key: pause for key, pause in self._pauses.items() if key in sessions}
        self._had_turns = {uid: None for uid in self._had_turns if uid in users}

    def offer(self, wanted: Mapping[SessionKey, float]) -> None:
        """Begin to resize as many of these sessions, each to its share, as may be resized now; does not wait."""
        ready: dict[int, SessionKey] = {}
        for key in wanted:
            pause = self._pauses.get(key)
            if not self._places.held(key.uid) and (pause is None or self._now() >= pause.until):
                ready.setdefault(key.uid, key)
        order = list(self._had_turns)
        for uid in sorted(ready, key=lambda uid: order.index(uid) if uid in self._had_turns else -1):
            place = self._places.take(uid)
            if place is None:
                return
            self._had_turns.pop(uid, None)
            self._had_turns[uid] = None
            self._tasks.spawn(self._try(ready[uid], wanted[ready[uid]], place))

    async def close(self) -> None:
        """End the resizes that are under way."""
        await self._tasks.end()

    async def _try(self, key: SessionKey, share: float, place: Place) -> None:
        try:
            async with asyncio.timeout(self._deadline):
                await self._resize(key, share)
        except (ResizeError, TimeoutError) as error:
            before = self._pauses.get(key)
            pause = FIRST_PAUSE if before is None else min(2 * before.seconds, LONGEST_PAUSE)
            self._pauses[key] = _Pause(self._now() + pause, pause)
            why = str(error) or f"no standby with that share within {self._deadline:g} s"
            self._failed(ResizeFailure(key, share, pause, why))
        else:
            self._pauses.pop(key, None)
            self._done(key, share)
        finally:
            place.give_back()
        self._over()
