"""Resizes running sessions to what objectives leave to their class, in turns of users."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, NamedTuple

from mpsguard.guard.broker.lowered_shares import ClassCeilings
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.incidents.domain_view import DomainView
from mpsguard.guard.incidents.live_resize import ResizeError
from mpsguard.guard.incidents.objective_loop import WHOLE, share_of
from mpsguard.linux.tasks import Owner
from mpsguard.linux.user_share import Place, UserShare
from mpsguard.vault.server import transitions
from mpsguard.vault.server.vault import Vault
from mpsguard.vault.wire.region import SessionKey, SessionRecord

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
    """Owns the resizes that are under way: a session that takes long holds up its own user's alone.

    A resize takes as long as the program takes to start, and the program decides that. So a user has one at a time,
    several users have theirs at once, and each has a deadline.
    """

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


class ShareEnforcer:
    """Brings the sessions of one domain's batch classes to their ceilings."""

    def __init__(
        self,
        domain: DomainView,
        *,
        classes: Collection[str],
        ceilings: ClassCeilings,
        resize: Resize,
        events: EventStream,
    ) -> None:
        """Create it.

        Args:
            domain: the domain.
            classes: names of the batch classes of objectives that are enforced.
            ceilings: the domain's.
            resize: see `Resize`.
            events: receives failures.
        """
        self._domain = domain
        self._classes = classes
        self._ceilings = ceilings
        self._events = events
        self._woken = asyncio.Event()
        self._given: dict[SessionKey, float] = {}
        """Shares of sessions that were resized here: what an operator set lower is left as it is."""
        self._turns = ResizeTurns(resize, done=self._given.__setitem__, failed=self._tell, over=self.wake)

    def wake(self) -> None:
        """Look for sessions that are not at their ceiling."""
        self._woken.set()

    async def run(self, vault: Vault) -> None:
        """Resize until cancelled."""
        try:
            while True:
                await self._woken.wait()
                self._woken.clear()
                self._look(vault)
        finally:
            await self._turns.close()

    def _look(self, vault: Vault) -> None:
        """Begin to resize sessions that are not at their ceiling."""
        sessions = vault.store.sessions
        for key in self._given.keys() - sessions.keys():
            del self._given[key]
        self._turns.keep(sessions.keys())
        wanted = {key: self._wanted(record) for key, record in sessions.items()}
        self._turns.offer({key: share for key, share in wanted.items() if share is not None})

    def _wanted(self, record: SessionRecord) -> float | None:
        """Return the share that a session is to get now; None if it keeps what it has."""
        client = None if record.writer is None else self._domain.clients.get(record.writer.process)
        if client is None or client.service_class not in self._classes or not transitions.ready_standbys(record):
            return None
        has = share_of(self._domain, client)
        wanted = self._ceilings.of(client.service_class) or self._domain.class_share(client.service_class) or WHOLE
        raised = has < wanted and self._given.get(record.key) == has
        return wanted if has > wanted or raised else None

    def _tell(self, failure: ResizeFailure) -> None:
        self._events.publish(
            "objective_resize_failed",
            self._domain.name,
            session=str(failure.session),
            share=failure.share,
            again_in=failure.again_in,
            detail=failure.why,
        )
