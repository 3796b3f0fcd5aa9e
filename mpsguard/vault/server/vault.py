"""The vault: grants leases on sessions, fences and promotes writers.

Updates are atomic if the guard or a client dies: a bundle is stored first, then the manifest refers to it, and only
then the client gets its answer. The next start discards a bundle that no manifest refers to. Everything runs on one
event loop, so no session changes between two awaits.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.tasks import Owner, finish
from mpsguard.vault.server import transitions
from mpsguard.vault.server.counters import Counters, Tally, snapshot
from mpsguard.vault.server.early_deaths import EarlyDeath, EarlyDeaths
from mpsguard.vault.server.fd_storage.background import BackgroundStorage
from mpsguard.vault.server.fd_storage.storage import buffer_name
from mpsguard.vault.server.leases import Leases, Listener
from mpsguard.vault.server.lifetimes import Lifetimes
from mpsguard.vault.server.quota import Quota
from mpsguard.vault.server.regions import Regions
from mpsguard.vault.server.restoration import Restored
from mpsguard.vault.server.session_store import SessionStore
from mpsguard.vault.server.spare_buffers import SpareBuffers
from mpsguard.vault.server.turns import Turns
from mpsguard.vault.wire.errors import (
    BadRequestError,
    LeaseHeldError,
    NotPermittedError,
    QuotaError,
    StaleGenerationError,
    UnknownSessionError,
    VaultError,
)
from mpsguard.vault.wire.region import Carried, Grant, Lease, LeaseRole, SessionKey, SessionRecord
from mpsguard.vault.wire.wire import Fenced, Granted

_RETRY: Final = 1.0
"""Seconds until a promotion for which there was no memory is tried again."""
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
        # They need each other: nothing is evicted before both are there.
        self.store = SessionStore(storage, quota, lambda session: self.lifetimes.evict(session))  # noqa: PLW0108
        self.regions = Regions(self.store, self.tally, gpus)
        self._now = now
        self._storage = storage
        self._spares = SpareBuffers(self.store, storage)
        self.turns = Turns()
        """Shares the loop's time between users."""
        self._leases = Leases(self._holder_ended)
        self._early_deaths = EarlyDeaths(on_early_death)
        self._failovers = Owner()
        self.lifetimes = Lifetimes(
            self.store,
            self.regions,
            storage,
            self._leases,
            spares=self._spares,
            early_deaths=self._early_deaths,
            tally=self.tally,
            now=now,
        )

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
        self.lifetimes.schedule()

    async def settle(self) -> None:
        """Finish the promotions that have begun, which the storage's deadlines bound, and begin no more by itself."""
        await self._failovers.end()

    def close(self) -> None:
        """Close everything. The storage keeps its copies, and leases remain valid for the next guard."""
        self.lifetimes.close()
        self._failovers.cancel()
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

        ``handle`` is owned by the vault from now on, also on failure. If the caller is cancelled, the lease is granted
        nevertheless; `detach` ends it.
        """
        await finish(self._attach(key, lease, handle, listener, capacity=capacity, keep=keep, grants=grants))

    async def _attach(
        self,
        key: SessionKey,
        lease: Lease,
        handle: ProcessHandle,
        listener: Listener,
        *,
        capacity: int,
        keep: float | None,
        grants: tuple[Grant, ...],
    ) -> None:
        token, role, uid = lease.token, lease.role, lease.uid
        try:
            if self._leases.has(token) or self.lifetimes.is_made_for(token):
                raise BadRequestError("that token is taken")
            if self.lifetimes.is_made(key):
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
                await self.lifetimes.make(key, lease, capacity, keep, grants)
        except BaseException:
            handle.close()
            raise
        self._leases.add(key, token, handle, listener)
        if role is LeaseRole.WRITER:
            await self._begin_writing(key, token)

    def knows(self, key: SessionKey, token: int) -> bool:
        """Return whether the session has a lease with that token."""
        session = self.store.sessions.get(key)
        return session is not None and session.lease(token) is not None

    async def reclaim(self, key: SessionKey, token: int, handle: ProcessHandle, listener: Listener) -> Lease:
        """Reconnect a process to its lease and return the lease; closes ``handle``."""
        with handle:
            session = self.store.session(key)
            lease = session.lease(token)
            if lease is None or lease.role is LeaseRole.FENCED:
                raise StaleGenerationError(f"fenced off; {key.name!r} is at generation {session.generation}")
            if lease.process != handle.key:
                raise NotPermittedError(f"that lease is process {lease.process.pid}'s")
        self._leases.connect(token, listener)
        # Its state buffer may be on its way into the storage, for another connection of the same process.
        while session.carried is not None and session.writer is not None and session.writer.token == token:
            await self.store.changed(key)
            session = self.store.session(key)
        return lease

    def detach(self, key: SessionKey, token: int, listener: Listener, *, in_order: bool) -> None:
        """End a lease with its connection, unless its holder has reconnected. ``in_order``: promote no standby."""
        if self._leases.is_connected_by(token, listener):
            self._end_lease(key, token, in_order=in_order)

    async def acquire(self, key: SessionKey, token: int) -> None:
        """Make the holder of ``token`` the writer; raise LeaseHeldError if there is one."""
        self.store.commit(transitions.promote(self.store.session(key), token))
        await finish(self._begin_writing(key, token))

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

        This is finished also if the caller is cancelled. A standby with a state buffer that cannot be stored loses its
        lease, is notified, and the next one is promoted.

        Return False if the new writer could not be notified: it is not connected, or does not read.
        """
        session = self.store.session(key)
        lease = session.lease(token)
        if lease is None or lease.role is LeaseRole.FENCED:
            raise StaleGenerationError(f"no such standby of {key.name!r}")
        transitions.check_permitted(session, lease.uid, LeaseRole.WRITER)
        if lease.role is LeaseRole.WRITER:
            return self._announce(key, token)
        self.fence(key)
        try:
            self.store.commit(transitions.promote(self.store.session(key), token))
        except QuotaError:
            # There is no memory to write that down; without another try, no ready standby would hear of the fence.
            self._begin_failover(key, pause=_RETRY)
            raise
        return await finish(self._complete_promotion(key, token))

    async def _complete_promotion(self, key: SessionKey, token: int) -> bool:
        await self._begin_writing(key, token)
        return self._announce(key, token)

    def _announce(self, key: SessionKey, token: int) -> bool:
        """Notify a standby that it is the writer; return whether that could be sent."""
        self.tally.promotions += 1
        self._early_deaths.promoted(key, token, self._now())
        notified = self._leases.notify(token, Granted(self.store.sessions[key].generation))
        self._spares.prepare(key)
        return notified

    # --- the forward state

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

    async def _begin_writing(self, key: SessionKey, token: int) -> None:
        """Store a writer's state buffer before it is announced to the writer; end the lease if that fails."""
        try:
            await self._keep_buffer(key)
        except BaseException:
            self._give_up(key, token)
            raise

    async def _keep_buffer(self, key: SessionKey) -> None:
        session = self.store.session(key)
        generation = session.generation
        if session.carried is not None:
            await self._spares.ensure_kept(session, self._buffer(session))
        now = self.store.sessions.get(key)
        # Another session may have its name by now.
        if now is None or (now.id, now.generation) != (session.id, generation):
            self._storage.forget(buffer_name(session.id, generation))
            raise StaleGenerationError(f"fenced off before it began: {key.name!r}")
        if now.carried is not None:
            self.store.commit(transitions.buffer_kept(now))

    def _give_up(self, key: SessionKey, token: int) -> None:
        """End the lease of a process that could not become the writer, and notify it: a standby waits for that."""
        session = self.store.sessions.get(key)
        lease = None if session is None else session.lease(token)
        # One that was fenced off meanwhile has been notified, and protects its regions until its process ends.
        if session is not None and lease is not None and lease.role is not LeaseRole.FENCED:
            self._leases.notify(token, Fenced(session.generation))
            self._end_lease(key, token)

    def _holder_ended(self, key: SessionKey, token: int) -> None:
        session = self.store.sessions.get(key)
        lease = None if session is None else session.lease(token)
        if lease is None:
            self._leases.drop(token)
        else:
            self._failovers.spawn(self._end_in_turn(key, lease))

    async def _end_in_turn(self, key: SessionKey, lease: Lease) -> None:
        """End a lease when its holder has its turn, and charge it: the holder decides what there is to read."""
        await self.turns.take(lease.uid)
        with self.turns.charged(lease.uid):
            self._end_lease(key, lease.token)

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
        self.lifetimes.schedule()

    def _begin_failover(self, key: SessionKey, *, pause: float = 0.0) -> None:
        if transitions.candidate(self.store.sessions[key]) is None:
            return
        self._failovers.spawn(self._promote_candidate(key, pause=pause))

    async def _promote_candidate(self, key: SessionKey, *, pause: float = 0.0) -> None:
        """Promote a ready standby of an orphaned session, after a pause in seconds; if that fails, the next one."""
        if pause:
            await asyncio.sleep(pause)
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
