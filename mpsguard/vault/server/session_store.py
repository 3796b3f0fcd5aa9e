"""All sessions with their descriptors: saved when they change, counted, and closed when they are removed."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from mpsguard.linux.identity import ProcessKey
from mpsguard.vault.server import quota as quotas
from mpsguard.vault.server import transitions
from mpsguard.vault.server.fd_storage.background import BackgroundStorage
from mpsguard.vault.server.fd_storage.storage import buffer_name, region_name, session_name
from mpsguard.vault.server.quota import Quota, Usage
from mpsguard.vault.server.session_fds import SessionFds
from mpsguard.vault.wire.errors import QuotaError, StaleGenerationError, UnknownSessionError
from mpsguard.vault.wire.region import Lease, LeaseRole, SessionKey, SessionRecord
from mpsguard.vault.wire.session_page import RELEASED, CheckpointRequest


class SessionStore:
    """Owns the descriptors of every session."""

    def __init__(self, storage: BackgroundStorage, quota: Quota, evict: Callable[[SessionRecord], None]) -> None:
        """Create an empty store.

        Args:
            storage: keeps copies of the descriptors beyond the guard's end.
            quota: the limits.
            evict: removes a session to make room for another user's.
        """
        self._evict = evict
        self.storage = storage
        self.quota = quota
        self.sessions: dict[SessionKey, SessionRecord] = {}
        self.session_fds: dict[SessionKey, SessionFds] = {}
        self._usage: dict[int, Usage] = {}
        self._total = Usage()
        self._last_id = 0
        self._changes: dict[SessionKey, asyncio.Event] = {}
        """Of sessions that are waited for."""

    async def changed(self, key: SessionKey) -> None:
        """Wait until a session is saved with something new, or is removed."""
        change = self._changes.setdefault(key, asyncio.Event())
        await change.wait()

    def _tell(self, key: SessionKey) -> None:
        change = self._changes.pop(key, None)
        if change is not None:
            change.set()

    def new_id(self) -> int:
        """Return a number that was never given to a session or region of this vault."""
        self._last_id += 1
        return self._last_id

    def ids_up_to(self, last: int) -> None:
        """Skip the ids that the previous guard assigned."""
        self._last_id = max(self._last_id, last)

    def session(self, key: SessionKey) -> SessionRecord:
        """Return the session; raise UnknownSessionError if it does not exist."""
        session = self.sessions.get(key)
        if session is None:
            raise UnknownSessionError(f"there is no session {key.name!r}")
        return session

    def state_copies(self, key: SessionKey, token: int) -> tuple[SessionRecord, Lease, tuple[int, int]]:
        """Return the current generation's state buffer (writable for its writer) and the page. The caller owns both."""
        session = self.session(key)
        lease = session.lease(token)
        if lease is None:
            raise StaleGenerationError(f"the lease on {key.name!r} has ended")
        try:
            copies = self.session_fds[key].state_copies(session, writable=lease.role is LeaseRole.WRITER)
        except OSError as error:
            raise QuotaError(f"the record: {error.strerror}") from None
        return session, lease, copies

    def request_checkpoint(self, key: SessionKey, request: CheckpointRequest, token: int | None = None) -> int:
        """Ask a session's writer for a checkpoint and return the request's number.

        Args:
            key: the session.
            request: what to ask for.
            token: of the lease that asks; None: an administrator.

        Raises:
            NotPermittedError: the holder of the lease may not become the writer.
            UnknownRegionError, UnavailableError: see `SessionFds.request_checkpoint`.
        """
        session = self.session(key)
        if token is not None:
            transitions.check_may_write(session, token)
        return self.session_fds[key].request_checkpoint(session, request)

    def writers(self) -> set[ProcessKey]:
        """Return the processes that write a session."""
        return {session.writer.process for session in self.sessions.values() if session.writer is not None}

    def contents(self) -> dict[str, tuple[int, ...]]:
        """Return the bundles that the storage should hold: their descriptors by name."""
        found: dict[str, tuple[int, ...]] = {}
        for key, session in self.sessions.items():
            session_fds = self.session_fds[key]
            if session.carried is None:
                found[buffer_name(session.id, session.generation)] = (session_fds.buffer(session),)
            for region in session.regions.values():
                found[region_name(region.id)] = session_fds.chunks[region.id]
            # The manifest comes last: everything it refers to must be stored before it.
            found[session_name(session.id)] = session_fds.kept
        return found

    def reserve(self, uid: int, more: Usage) -> None:
        """Reserve room for a pending operation until `unreserve`; raise QuotaError if there is none."""
        while True:
            try:
                quotas.check_room(self.quota, uid, self._usage.get(uid, Usage()), self._total, more)
            except quotas.FullError:
                victim = self._eviction_candidate(uid, more)
                if victim is None:
                    raise
                self._evict(victim)
            else:
                self._account(uid, more)
                return

    def _eviction_candidate(self, uid: int, more: Usage) -> SessionRecord | None:
        """Return the longest idle session of the heaviest user that has an idle one, or None."""
        for heavy in quotas.heavier(self._usage, uid, more):
            idle = [each for key, each in self.sessions.items() if key.uid == heavy and each.idle_since is not None]
            if idle:
                return min(idle, key=lambda each: each.idle_since or 0.0)
        return None

    def unreserve(self, uid: int, less: Usage) -> None:
        """Release reserved room."""
        self._account(uid, Usage() - less)

    def add(self, session: SessionRecord, session_fds: SessionFds) -> None:
        """Add a session that is already in its manifest, and take ownership of its descriptors."""
        self.session_fds[session.key] = session_fds
        self.commit(session, must=False)

    def commit(self, session: SessionRecord, *, must: bool = True) -> None:
        """Save a session, then publish it, then close the descriptors of removed regions.

        If it cannot be saved: raise QuotaError and change nothing or, without ``must``, publish it nevertheless.
        """
        key = session.key
        session_fds = self.session_fds[key]
        try:
            session_fds.manifest.commit(session)
        except QuotaError:
            if must:
                raise
        before = self.sessions.get(key)
        self.sessions[key] = session
        self._tell(key)
        if before is not None and before.regions is session.regions:
            return
        self._account(key.uid, _change(before, session))
        if before is not None:
            for name in before.regions.keys() - session.regions.keys():
                region = before.regions[name]
                self.storage.forget(region_name(region.id))
                self.storage.dispose(session_fds.chunks.pop(region.id))

    def remove(self, session: SessionRecord) -> None:
        """Remove a session with all its descriptors."""
        session_fds = self.session_fds.pop(session.key)
        with suppress(QuotaError):
            session_fds.manifest.commit(None)
        # The manifest first: without it, the next start discards the remaining bundles of the session.
        self.storage.forget(session_name(session.id))
        for generation in {session.generation, session_fds.spare_generation or session.generation}:
            self.storage.forget(buffer_name(session.id, generation))
        for region in session.regions.values():
            self.storage.forget(region_name(region.id))
        session_fds.page.generation = RELEASED
        self.storage.dispose(session_fds.close())
        del self.sessions[session.key]
        self._tell(session.key)
        self._account(session.key.uid, Usage() - quotas.of_sessions((session,)))

    def close(self) -> None:
        """Close all descriptors; the storage keeps its copies."""
        for session_fds in self.session_fds.values():
            self.storage.dispose(session_fds.close())
        self.session_fds.clear()
        self.sessions.clear()

    def _account(self, uid: int, more: Usage) -> None:
        self._total += more
        used = self._usage.get(uid, Usage()) + more
        if used == Usage():
            self._usage.pop(uid, None)
        else:
            self._usage[uid] = used


def _change(before: SessionRecord | None, after: SessionRecord) -> Usage:
    """Return the change in usage between two states of a session. Only regions that differ are inspected."""
    if before is None:
        return quotas.of_sessions((after,))
    more = Usage()
    for name, region in after.regions.items():
        if before.regions.get(name) is not region:
            more += quotas.of_region(region.layout, region.metadata)
    for name, region in before.regions.items():
        if after.regions.get(name) is not region:
            more -= quotas.of_region(region.layout, region.metadata)
    return more
