"""The vault: grants leases on sessions, fences and promotes writers, and expires sessions.

Updates are atomic if the guard or a client dies: a bundle is stored first, then the manifest refers to it, and only
then the client gets its answer. The next start discards a bundle that no manifest refers to. Everything runs on one
event loop, so no session changes between two awaits.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from mpsguard.linux.descriptors import memfd
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.tasks import TaskSet
from mpsguard.vault import transitions
from mpsguard.vault.counters import Counters, Tally, snapshot
from mpsguard.vault.early_deaths import EarlyDeath, EarlyDeaths
from mpsguard.vault.errors import (
    BadRequestError,
    LeaseHeldError,
    NotPermittedError,
    QuotaError,
    StaleGenerationError,
    TooLargeError,
    UnknownSessionError,
    VaultError,
)
from mpsguard.vault.fd_storage.background import BackgroundStorage
from mpsguard.vault.fd_storage.storage import buffer_name, session_name
from mpsguard.vault.leases import Leases, Listener
from mpsguard.vault.quota import Quota, of_session
from mpsguard.vault.region import Carried, Grant, Lease, LeaseRole, SessionKey, SessionRecord
from mpsguard.vault.regions import Regions
from mpsguard.vault.restoration import Restored
from mpsguard.vault.session_fds import SessionFds, copies
from mpsguard.vault.session_store import SessionStore
from mpsguard.vault.spare_buffers import SpareBuffers
from mpsguard.vault.wire import Fenced, Granted, Released

_BUSY: Final = "the session is being made or released; ask again"


def boot_time() -> float:
    """Return the seconds since the machine was booted, including suspended time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Vault:
    """Owns every descriptor of every session, and the leases."""

    def __init__(
        self,
        storage: BackgroundStorage,
        quota: Quota,
        *,
        gpus: frozenset[str] | None = None,
        now: Callable[[], float] = boot_time,
        on_early_death: Callable[[EarlyDeath], None] = lambda _: None,
    ) -> None:
        """Create an empty vault. ``gpus``: UUIDs on which regions may lie; None: any. ``on_early_death``: see
        `EarlyDeaths`.
        """
        self.quota = quota
        self.tally = Tally()
        self.store = SessionStore(storage, quota, self._evict)
        self.regions = Regions(self.store, self.tally, gpus)
        self._now = now
        self._storage = storage
        self._spares = SpareBuffers(self.store, storage)
        self._leases = Leases(self._end_lease)
        self._early_deaths = EarlyDeaths(on_early_death)
        self._making: dict[SessionKey, int] = {}
        """Sessions that are being created, with the tokens of their writers' leases."""
        self._failovers = TaskSet()
        self._expiry: asyncio.TimerHandle | None = None

    # --- start and end of the guard

    def adopt(self, restored: Restored, held: Mapping[int, ProcessHandle]) -> None:
        """Adopt the previous guard's sessions, and end the leases of those that are not ``held``; see `hold_all`."""
        self.store.ids_up_to(restored.last_id)
        self.tally.lost += len(restored.lost)
        for session, session_fds in restored.sessions:
            self.store.add(session, session_fds)
            self._spares.adopt(session.key)
            for lease in session.leases:
                if not self._leases.adopt(session.key, lease, held.get(lease.token)):
                    self._end_lease(session.key, lease.token)
            self._begin_failover(session.key)
            self._spares.prepare(session.key)
        self._schedule()

    def close(self) -> None:
        """Close everything. The storage keeps its copies, and leases remain valid for the next guard."""
        if self._expiry is not None:
            self._expiry.cancel()
        for task in self._failovers:
            task.cancel()
        self._leases.close()
        self.store.close()

    # --- leases

    async def attach(
        self,
        key: SessionKey,
        lease: Lease,
        handle: ProcessHandle,
        listener: Listener,
        *,
        capacity: int = 65536,
        keep: float | None = None,
        grants: tuple[Grant, ...] = (),
    ) -> None:
        """Grant a lease to a process; a writer creates a missing session.

        ``handle`` is owned by the vault from now on, also on failure.
        """
        token, role, uid = lease.token, lease.role, lease.uid
        try:
            if self._leases.has(token) or token in self._making.values():
                raise BadRequestError("that token is taken")
            if key in self._making:
                raise LeaseHeldError(_BUSY)
            session = self.store.sessions.get(key)
            if session is not None:
                if len(session.leases) >= self.quota.leases_per_session:
                    raise QuotaError(f"{key.name!r} has {len(session.leases)} leases already")
                self.store.commit(transitions.attach(session, lease))
            elif key.uid != uid:
                # The same answer as for an existing session, so that users cannot probe each other's sessions.
                raise NotPermittedError(f"uid {uid} may not be {role} of a session of uid {key.uid}")
            elif role is not LeaseRole.WRITER:
                raise UnknownSessionError(f"there is no session {key.name!r}")
            else:
                await self._make_session(key, lease, capacity, keep, grants)
        except BaseException:
            handle.close()
            raise
        self._leases.add(key, token, handle, listener)
        if role is LeaseRole.WRITER:
            await self._keep_buffer(key, token)

    def knows(self, key: SessionKey, token: int) -> bool:
        """Return whether the session has a lease with that token."""
        session = self.store.sessions.get(key)
        return session is not None and session.lease(token) is not None

    def reclaim(self, key: SessionKey, token: int, handle: ProcessHandle, listener: Listener) -> Lease:
        """Reconnect a process to its lease and return the lease; closes ``handle``."""
        with handle:
            session = self.store.session(key)
            lease = session.lease(token)
            if lease is None or lease.role is LeaseRole.FENCED:
                raise StaleGenerationError(f"fenced off; {key.name!r} is at generation {session.generation}")
            if lease.process != handle.key:
                raise NotPermittedError(f"that lease is process {lease.process.pid}'s")
        self._leases.connect(token, listener)
        return lease

    def detach(self, key: SessionKey, token: int, listener: Listener, *, in_order: bool) -> None:
        """End a lease with its connection, unless its holder has reconnected. ``in_order``: promote no standby."""
        if self._leases.is_connected_by(token, listener):
            self._end_lease(key, token, in_order=in_order)

    async def acquire(self, key: SessionKey, token: int) -> None:
        """Make the holder of ``token`` the writer; raise LeaseHeldError if there is one."""
        self.store.commit(transitions.promote(self.store.session(key), token))
        await self._keep_buffer(key, token)

    async def ready(self, key: SessionKey, token: int) -> None:
        """Record that a standby is ready; if the session is an orphan, promote it."""
        self.store.commit(transitions.ready(self.store.session(key), token))
        await self._promote_candidate(key)
        self._spares.prepare(key)

    def fence(self, key: SessionKey) -> None:
        """Fence off the writer, if there is one. After the return, its publications no longer count."""
        session = self.store.session(key)
        if session.writer is None:
            return
        token = session.writer.token
        self._change_generation(session, lambda carried: transitions.fence(session, carried))
        self._leases.notify(token, Fenced(self.store.sessions[key].generation))

    def dismiss(self, key: SessionKey, token: int) -> None:
        """Exclude a standby that cannot take over any more (its lane has faulted), and notify it."""
        self.store.commit(transitions.dismiss(self.store.session(key), token))
        self._leases.notify(token, Fenced(self.store.sessions[key].generation))

    async def promote(self, key: SessionKey, token: int) -> bool:
        """Fence the writer off, make the standby with ``token`` the new writer, and notify both.

        Return False if the new writer could not be notified: it is not connected, or does not read.
        """
        session = self.store.session(key)
        lease = session.lease(token)
        if lease is None or lease.role is LeaseRole.FENCED:
            raise StaleGenerationError(f"no such standby of {key.name!r}")
        transitions.check_permitted(session, lease.uid, LeaseRole.WRITER)
        if lease.role is not LeaseRole.WRITER:
            self.fence(key)
            await self.acquire(key, token)
        self.tally.promotions += 1
        self._early_deaths.promoted(key, token, self._now())
        notified = self._leases.notify(token, Granted(self.store.sessions[key].generation))
        self._spares.prepare(key)
        return notified

    # --- release

    def release(self, key: SessionKey, token: int, name: str | None) -> None:
        """Remove a region, or the session (None), for its writer; raise LeaseHeldError if another process maps it."""
        session = self.store.session(key)
        if name is not None:
            self.regions.release(key, token, name)
            return
        transitions.check_writer(session, token)
        transitions.check_unmapped(session, None, besides=token)
        self._remove(session)
        self.tally.released += len(session.regions)

    def release_by_command(self, key: SessionKey, name: str | None, *, force: bool) -> None:
        """Remove a region, or a session (None), on an administrator's behalf; ``force``: also if it is mapped.

        A process that maps it is then notified, and its own descriptors stay valid. Raises LeaseHeldError without
        ``force``.
        """
        session = self.store.session(key)
        if name is not None:
            without = transitions.without_region(session, name)
        if not force:
            transitions.check_unmapped(session, name)
        if name is None:
            self._remove(session)
            self.tally.released += len(session.regions)
            return
        for lease in session.leases:
            if name in lease.regions:
                self._leases.notify(lease.token, Released(name))
        self.store.commit(without)
        self.tally.released += 1

    # --- the forward state

    def buffer_copy(self, key: SessionKey, token: int) -> tuple[SessionRecord, Lease, int]:
        """Return the current generation's state buffer: writable for its writer, else read-only. The caller owns it."""
        session = self.store.session(key)
        lease = session.lease(token)
        if lease is None:
            raise StaleGenerationError(f"the lease on {key.name!r} has ended")
        held = self._buffer(session)
        try:
            fd = copies((held,))[0] if lease.role is LeaseRole.WRITER else memfd.read_only(held)
        except OSError as error:
            raise QuotaError(f"the record: {error.strerror}") from None
        return session, lease, fd

    def state(self, key: SessionKey) -> Carried:
        """Return the current forward state."""
        session = self.store.session(key)
        return self.store.session_fds[key].newest(session)

    def counters(self) -> Counters:
        """Return a snapshot of the counters."""
        # A copy, because a separate thread reads the metrics.
        self.tally.early_deaths = self._early_deaths.total
        return snapshot(self.tally, list(self.store.sessions.values()), self._storage.unkept)

    def _buffer(self, session: SessionRecord) -> int:
        try:
            return self.store.session_fds[session.key].buffer(session)
        except OSError as error:
            raise QuotaError(f"the record: {error.strerror}") from None

    # --- how a session changes

    async def _make_session(
        self, key: SessionKey, lease: Lease, capacity: int, keep: float | None, grants: tuple[Grant, ...]
    ) -> None:
        if capacity > self.quota.state_bytes:
            raise TooLargeError(f"{capacity} bytes of state; at most {self.quota.state_bytes}")
        session = SessionRecord(key, self.store.new_id(), capacity, keep, grants, carried=Carried(0, 1, None))
        session = transitions.attach(session, lease)
        name = session_name(session.id)
        self.store.reserve(key.uid, of_session(capacity))
        self._making[key] = lease.token
        try:
            session_fds = SessionFds.create(session)
            try:
                session_fds.manifest.commit(session)
                await self._storage.keep(name, (session_fds.manifest.fd,))
            except BaseException:
                self._storage.forget(name)
                session_fds.close()
                raise
        except OSError as error:
            raise QuotaError(f"no room for a session: {error.strerror}") from None
        finally:
            del self._making[key]
            self.store.unreserve(key.uid, of_session(capacity))
        self.store.add(session, session_fds)

    async def _keep_buffer(self, key: SessionKey, token: int) -> None:
        """Store a writer's state buffer before it is announced to the writer; end the lease if that fails."""
        session = self.store.session(key)
        generation = session.generation
        if session.carried is not None:
            try:
                await self._spares.ensure_kept(session, self._buffer(session))
            except BaseException:
                self._end_lease(key, token)
                raise
        now = self.store.sessions.get(key)
        # Another session may have its name by now.
        if now is None or (now.id, now.generation) != (session.id, generation):
            self._storage.forget(buffer_name(session.id, generation))
            raise StaleGenerationError(f"fenced off before it began: {key.name!r}")
        if now.carried is not None:
            self.store.commit(transitions.buffer_kept(now))

    def _end_lease(self, key: SessionKey, token: int, *, in_order: bool = False) -> None:
        self._leases.drop(token)
        session = self.store.sessions.get(key)
        if session is None or session.lease(token) is None:
            return
        now = self._now()
        if session.writer is not None and session.writer.token == token:
            process, generation = session.writer.process, session.generation
            self._early_deaths.ended(key, token, process, generation, now, in_order=in_order)
            self._change_generation(
                session, lambda carried: transitions.end_lease(session, token, now, carried, in_order=in_order)
            )
            self._begin_failover(key)
        else:
            self.store.commit(transitions.end_lease(session, token, now, None), must=False)
        self._schedule()

    def _begin_failover(self, key: SessionKey) -> None:
        if transitions.candidate(self.store.sessions[key]) is None:
            return
        self._failovers.spawn(self._promote_candidate(key))

    async def _promote_candidate(self, key: SessionKey) -> None:
        """Promote a ready standby of an orphaned session; if that fails, the next one."""
        tried: set[int] = set()
        while (session := self.store.sessions.get(key)) is not None:
            candidate = transitions.candidate(session)
            if candidate is None or candidate.token in tried:
                return
            tried.add(candidate.token)
            with suppress(VaultError):
                await self.promote(key, candidate.token)

    def _change_generation(self, session: SessionRecord, change: Callable[[Carried], SessionRecord]) -> None:
        session_fds = self.store.session_fds[session.key]
        after = change(session_fds.end_generation(session))
        # Also if it cannot be saved: fencing takes effect at once.
        self.store.commit(after, must=False)
        session_fds.renew_buffer(after)
        self._storage.forget(buffer_name(session.id, session.generation))
        self.tally.fences += 1

    def _evict(self, session: SessionRecord) -> None:
        """Remove an unused session of a heavy user to make room for another user's."""
        self.tally.expired += len(session.regions)
        self._remove(session)

    def _remove(self, session: SessionRecord) -> None:
        self.store.remove(session)
        self._early_deaths.forget(session.key)
        self._spares.drop(session.key)
        for lease in session.leases:
            # Otherwise a standby would wait for ever.
            self._leases.notify(lease.token, Released(None))
            self._leases.drop(lease.token)

    # --- time

    def _schedule(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        due = [at for at in map(transitions.expires_at, self.store.sessions.values()) if at is not None]
        if due:
            # Wait at most one minute at a time: the loop's clock stops while the machine is suspended, `_now` does not.
            delay = min(max(min(due) - self._now(), 0.0), 60.0)
            self._expiry = asyncio.get_running_loop().call_later(delay, self.expire)

    def expire(self) -> None:
        """Release the sessions that have expired."""
        now = self._now()
        for session in list(self.store.sessions.values()):
            due = transitions.expires_at(session)
            if due is not None and due <= now:
                self.tally.expired += len(session.regions)
                self._remove(session)
        self._schedule()
