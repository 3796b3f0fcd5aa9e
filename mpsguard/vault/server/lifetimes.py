"""How the vault's sessions begin and end: made for a writer, released, evicted for another user, expired."""

import asyncio
from collections.abc import Callable
from typing import Final

from mpsguard.vault.server import transitions
from mpsguard.vault.server.counters import Tally
from mpsguard.vault.server.early_deaths import EarlyDeaths
from mpsguard.vault.server.fd_storage.background import BackgroundStorage
from mpsguard.vault.server.fd_storage.storage import session_name
from mpsguard.vault.server.leases import Leases
from mpsguard.vault.server.quota import of_session
from mpsguard.vault.server.regions import Regions
from mpsguard.vault.server.session_fds import SessionFds
from mpsguard.vault.server.session_store import SessionStore
from mpsguard.vault.server.spare_buffers import SpareBuffers
from mpsguard.vault.wire.errors import QuotaError, TooLargeError
from mpsguard.vault.wire.region import Carried, Grant, Lease, SessionKey, SessionRecord
from mpsguard.vault.wire.wire import Released

_LONGEST_WAIT: Final = 60.0
"""Seconds until the next look at what expires: the loop's clock stops while the machine is suspended, the vault's does
not."""


class Lifetimes:
    """Owns the sessions that are being made, and the timer of those that expire."""

    def __init__(
        self,
        store: SessionStore,
        regions: Regions,
        storage: BackgroundStorage,
        leases: Leases,
        *,
        spares: SpareBuffers,
        early_deaths: EarlyDeaths,
        tally: Tally,
        now: Callable[[], float],
    ) -> None:
        """All is the vault's own; ``now``: see `vault.boot_time`."""
        self._store = store
        self._regions = regions
        self._storage = storage
        self._leases = leases
        self._spares = spares
        self._early_deaths = early_deaths
        self._tally = tally
        self._now = now
        self._making: dict[SessionKey, int] = {}
        """Sessions that are being made, with the tokens of their writers' leases."""
        self._expiry: asyncio.TimerHandle | None = None

    def is_made(self, key: SessionKey) -> bool:
        """Return whether a session of that key is being made."""
        return key in self._making

    def is_made_for(self, token: int) -> bool:
        """Return whether a session is being made for the lease with that token."""
        return token in self._making.values()

    def close(self) -> None:
        """Expire nothing more."""
        if self._expiry is not None:
            self._expiry.cancel()

    async def make(
        self, key: SessionKey, lease: Lease, capacity: int, keep: float | None, grants: tuple[Grant, ...]
    ) -> None:
        """Make a session with its writer's lease, stored before it is there; raise TooLargeError or QuotaError."""
        if capacity > self._store.quota.state_bytes:
            raise TooLargeError(f"{capacity} bytes of state; at most {self._store.quota.state_bytes}")
        session = SessionRecord(key, self._store.new_id(), capacity, keep, grants, carried=Carried(0, 1, None))
        session = transitions.attach(session, lease)
        name = session_name(session.id)
        self._store.reserve(key.uid, of_session(capacity))
        self._making[key] = lease.token
        try:
            session_fds = SessionFds.create(session)
            try:
                session_fds.manifest.commit(session)
                await self._storage.keep(name, session_fds.kept)
            except BaseException:
                self._storage.forget(name)
                session_fds.close()
                raise
        except OSError as error:
            raise QuotaError(f"no room for a session: {error.strerror}") from None
        finally:
            del self._making[key]
            self._store.unreserve(key.uid, of_session(capacity))
        self._store.add(session, session_fds)

    def release(self, key: SessionKey, token: int, name: str | None) -> None:
        """Remove a region, or the session (None), for its writer; raise LeaseHeldError if another process maps it."""
        session = self._store.session(key)
        if name is not None:
            self._regions.release(key, token, name)
            return
        transitions.check_writer(session, token)
        transitions.check_unmapped(session, None, besides=token)
        self._remove(session)
        self._tally.released += len(session.regions)

    def release_by_command(self, key: SessionKey, name: str | None, *, force: bool) -> None:
        """Remove a region, or a session (None), on an administrator's behalf; ``force``: also if it is mapped.

        A process that maps it is then notified, and its own descriptors stay valid. Raises LeaseHeldError without
        ``force``.
        """
        session = self._store.session(key)
        if name is not None:
            without = transitions.without_region(session, name)
        if not force:
            transitions.check_unmapped(session, name)
        if name is None:
            self._remove(session)
            self._tally.released += len(session.regions)
            return
        for lease in session.leases:
            if name in lease.regions:
                self._leases.notify(lease.token, Released(name))
        self._store.commit(without)
        self._tally.released += 1

    def evict(self, session: SessionRecord) -> None:
        """Remove an unused session of a heavy user to make room for another user's."""
        self._tally.expired += len(session.regions)
        self._remove(session)

    def schedule(self) -> None:
        """Expire what is due, when it is; to be called when a session may have become one that nothing holds."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        due = [at for at in map(transitions.expires_at, self._store.sessions.values()) if at is not None]
        if due:
            delay = min(max(min(due) - self._now(), 0.0), _LONGEST_WAIT)
            self._expiry = asyncio.get_running_loop().call_later(delay, self.expire)

    def expire(self) -> None:
        """Release the sessions that have expired."""
        now = self._now()
        for session in list(self._store.sessions.values()):
            due = transitions.expires_at(session)
            if due is not None and due <= now:
                self._tally.expired += len(session.regions)
                self._remove(session)
        self.schedule()

    def _remove(self, session: SessionRecord) -> None:
        self._store.remove(session)
        self._early_deaths.forget(session.key)
        self._spares.drop(session.key)
        for lease in session.leases:
            # Otherwise a standby would wait for ever.
            self._leases.notify(lease.token, Released(None))
            self._leases.drop(lease.token)
