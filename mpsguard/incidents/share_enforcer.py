"""Resizes running sessions to what objectives leave to their class: one at a time, and rarely again where it fails."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Final, NamedTuple

from mpsguard.broker.class_ceilings import ClassCeilings
from mpsguard.control_api.event_stream import EventStream
from mpsguard.incidents.domain_view import DomainView
from mpsguard.incidents.live_resize import ResizeError
from mpsguard.incidents.objective_loop import WHOLE, share_of
from mpsguard.vault import transitions
from mpsguard.vault.region import SessionKey, SessionRecord
from mpsguard.vault.vault import Vault

RESIZE_DEADLINE: Final = 600.0
"""Seconds for one session: a standby with the new share has to start, and a large model takes minutes to load."""
FIRST_PAUSE: Final = 60.0
"""Seconds after a failed resize before that session is tried again; doubled with each failure."""
LONGEST_PAUSE: Final = 3600.0
"""Limit of that: a session that cannot be resized costs a start of a standby each time."""

Resize = Callable[[SessionKey, float], Awaitable[object]]
"""Gives a session a share in percent, and returns when it has it; raises ResizeError."""


class _Pause(NamedTuple):
    until: float
    seconds: float


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
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create it.

        Args:
            domain: the domain.
            classes: names of the batch classes of objectives that are enforced.
            ceilings: the domain's.
            resize: see `Resize`.
            events: receives failures.
            now: seconds of a clock.
        """
        self._domain = domain
        self._classes = classes
        self._ceilings = ceilings
        self._resize = resize
        self._events = events
        self._now = now
        self._woken = asyncio.Event()
        self._given: dict[SessionKey, float] = {}
        """Shares of sessions that were resized here: what an operator set lower is left as it is."""
        self._pauses: dict[SessionKey, _Pause] = {}

    def wake(self) -> None:
        """Look for sessions that are not at their ceiling."""
        self._woken.set()

    async def run(self, vault: Vault) -> None:
        """Resize until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            await self.look(vault)

    async def look(self, vault: Vault) -> None:
        """Resize the sessions that are not at their ceiling, one after the other."""
        for known in (self._given, self._pauses):
            for key in known.keys() - vault.store.sessions.keys():
                del known[key]
        for key in list(vault.store.sessions):
            record = vault.store.sessions.get(key)
            share = None if record is None else self._wanted(record)
            if share is not None:
                await self._try(key, share)

    def _wanted(self, record: SessionRecord) -> float | None:
        """Return the share that a session is to get now; None if it keeps what it has."""
        client = None if record.writer is None else self._domain.clients.get(record.writer.process)
        if client is None or client.service_class not in self._classes or not transitions.ready_standbys(record):
            return None
        pause = self._pauses.get(record.key)
        if pause is not None and self._now() < pause.until:
            return None
        has = share_of(self._domain, client)
        wanted = self._ceilings.of(client.service_class) or self._domain.class_share(client.service_class) or WHOLE
        raised = has < wanted and self._given.get(record.key) == has
        return wanted if has > wanted or raised else None

    async def _try(self, key: SessionKey, share: float) -> None:
        try:
            async with asyncio.timeout(RESIZE_DEADLINE):
                await self._resize(key, share)
        except (ResizeError, TimeoutError) as error:
            before = self._pauses.get(key)
            pause = FIRST_PAUSE if before is None else min(2 * before.seconds, LONGEST_PAUSE)
            self._pauses[key] = _Pause(self._now() + pause, pause)
            detail = str(error) or f"no standby with that share within {RESIZE_DEADLINE:g} s"
            self._events.publish(
                "objective_resize_failed",
                self._domain.name,
                session=str(key),
                share=share,
                again_in=pause,
                detail=detail,
            )
        else:
            self._given[key] = share
            self._pauses.pop(key, None)
