"""Resizes running sessions to what objectives leave to their class, in turns of users (`resize_turns`)."""

import asyncio
from collections.abc import Collection

from mpsguard.guard.broker.class_ceilings import ClassCeilings
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.incidents.domain_view import DomainView
from mpsguard.guard.incidents.objective_loop import WHOLE, share_of
from mpsguard.guard.incidents.resize_turns import Resize, ResizeFailure, ResizeTurns
from mpsguard.vault.server import transitions
from mpsguard.vault.server.vault import Vault
from mpsguard.vault.wire.region import SessionKey, SessionRecord


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
            resize: see `resize_turns.Resize`.
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
