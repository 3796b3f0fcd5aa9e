"""The vault: who holds leases on its sessions, who writes, and when a session goes.

The order that makes what the vault holds appear whole or not at all, whoever dies when: a parcel is with the keeper
first, then the ledger says that it counts, and then whoever asked hears of it. A parcel that no ledger knows is thrown
away at the next start. All of it runs on one event loop: between two awaits nobody else changes a session.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from mpsguard.linux import memfd
from mpsguard.linux.process import ProcessHandle
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
from mpsguard.vault.fd_storage.storage import record_name, session_name
from mpsguard.vault.leases import Leases, Listener
from mpsguard.vault.quota import Quota, of_session
from mpsguard.vault.region import Carried, Grant, Lease, Role, Session, SessionKey
from mpsguard.vault.regions import Regions
from mpsguard.vault.session_fds import SessionFds, copies
from mpsguard.vault.session_store import SessionStore
from mpsguard.vault.spare_buffers import SpareBuffers
from mpsguard.vault.wire import Fenced, Granted, Released

_BUSY: Final = "the session is being made or released; ask again"


def boot_time() -> float:
    """Seconds since this machine was booted, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Vault:
    """Owns every descriptor of every session, and the leases."""

    def __init__(
        self,
        keeping: BackgroundStorage,
        quota: Quota,
        *,
        gpus: frozenset[str] | None = None,
        now: Callable[[], float] = boot_time,
        early_death: Callable[[EarlyDeath], None] = lambda _: None,
    ) -> None:
        """``gpus``: UUIDs that regions may lie on; None: any. ``early_death``: see `EarlyDeaths`."""
        self.quota = quota
        self.tally = Tally()
        self.stock = SessionStore(keeping, quota, self._evict)
        self.regions = Regions(self.stock, self.tally, gpus)
        self._now = now
        self._keeping = keeping
        self._spares = SpareBuffers(self.stock, keeping)
        self._leases = Leases(self._end_lease)
        self._early_deaths = EarlyDeaths(early_death)
        self._making: dict[SessionKey, int] = {}
        """Sessions under way, with the tokens that their writers' leases will have."""
        self._successions = TaskSet()
        self._expiry: asyncio.TimerHandle | None = None

    # --- what was there before, and what is left when this guard ends

    def take_over(self, sessions: Sequence[tuple[Session, SessionFds]], last_id: int, lost: int) -> None:
        """Go on with what the guard before had; holders whose process has ended since lose their leases now."""
        self.stock.ids_up_to(last_id)
        self.tally.lost += lost
        for session, holdings in sessions:
            self.stock.add(session, holdings)
            self._spares.adopt(session.key)
            for lease in session.leases:
                if not self._leases.adopt(session.key, lease):
                    self._end_lease(session.key, lease.token)
            self._begin_succession(session.key)
            self._spares.want(session.key)
        self._schedule()

    def close(self) -> None:
        """Give everything back; what the keeper has stays there, and leases stand for the next guard."""
        if self._expiry is not None:
            self._expiry.cancel()
        for task in self._successions:
            task.cancel()
        self._leases.close()
        self.stock.close()

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
        """Give a process a lease; a session that is not there is made for a writer.

        ``handle`` is the vault's from now on, whatever comes of it.
        """
        token, role, uid = lease.token, lease.role, lease.uid
        try:
            if self._leases.has(token) or token in self._making.values():
                raise BadRequestError("that token is taken")
            if key in self._making:
                raise LeaseHeldError(_BUSY)
            session = self.stock.sessions.get(key)
            if session is not None:
                if len(session.leases) >= self.quota.leases_per_session:
                    raise QuotaError(f"{key.name!r} has {len(session.leases)} leases already")
                self.stock.commit(transitions.attach(session, lease))
            elif key.uid != uid:
                # The same answer as for a session that is there: what other users have is not to be found out.
                raise NotPermittedError(f"uid {uid} may not be {role} of a session of uid {key.uid}")
            elif role is not Role.WRITER:
                raise UnknownSessionError(f"there is no session {key.name!r}")
            else:
                await self._make_session(key, lease, capacity, keep, grants)
        except BaseException:
            handle.close()
            raise
        self._leases.add(key, token, handle, listener)
        if role is Role.WRITER:
            await self._keep_record(key, token)

    def knows(self, key: SessionKey, token: int) -> bool:
        """Whether there is such a lease."""
        session = self.stock.sessions.get(key)
        return session is not None and session.lease(token) is not None

    def reclaim(self, key: SessionKey, token: int, handle: ProcessHandle, listener: Listener) -> Lease:
        """A process has come back, on a new connection, for the lease it has; ``handle`` is the vault's."""
        with handle:
            session = self.stock.session(key)
            lease = session.lease(token)
            if lease is None or lease.role is Role.FENCED:
                raise StaleGenerationError(f"fenced off; {key.name!r} is at generation {session.generation}")
            if lease.process != handle.key:
                raise NotPermittedError(f"that lease is process {lease.process.pid}'s")
        self._leases.connect(token, listener)
        return lease

    def detach(self, key: SessionKey, token: int, listener: Listener, *, in_order: bool) -> None:
        """The connection of a lease has ended, and the lease with it, unless its holder came back on another.

        ``in_order``: by the holder's own word; a writer's standby then stays one.
        """
        if self._leases.speaks_for(token, listener):
            self._end_lease(key, token, in_order=in_order)

    async def acquire(self, key: SessionKey, token: int) -> None:
        """Make the holder of ``token`` the writer; LeaseHeldError if there is one."""
        self.stock.commit(transitions.promote(self.stock.session(key), token))
        await self._keep_record(key, token)

    async def ready(self, key: SessionKey, token: int) -> None:
        """A standby could go on; if the session is an orphan, it does."""
        self.stock.commit(transitions.ready(self.stock.session(key), token))
        await self._inherit(key)
        self._spares.want(key)

    def fence(self, key: SessionKey) -> None:
        """Take the lease from the writer, if there is one. When this returns nothing it does counts any more."""
        session = self.stock.session(key)
        if session.writer is None:
            return
        token = session.writer.token
        self._change_generation(session, lambda carried: transitions.fence(session, carried))
        self._leases.tell(token, Fenced(self.stock.sessions[key].generation))

    def dismiss(self, key: SessionKey, token: int) -> None:
        """A standby cannot go on any more (its lane has faulted): tell it, and promote it no more."""
        self.stock.commit(transitions.dismiss(self.stock.session(key), token))
        self._leases.tell(token, Fenced(self.stock.sessions[key].generation))

    async def promote(self, key: SessionKey, token: int) -> bool:
        """Fence the writer off, make the holder of ``token`` (a standby) the next one, and tell both.

        False if the new writer could not be told: it is not connected, or does not read what it is sent.
        """
        session = self.stock.session(key)
        lease = session.lease(token)
        if lease is None or lease.role is Role.FENCED:
            raise StaleGenerationError(f"no such standby of {key.name!r}")
        transitions.check_may(session, lease.uid, Role.WRITER)
        if lease.role is not Role.WRITER:
            self.fence(key)
            await self.acquire(key, token)
        self.tally.promotions += 1
        self._early_deaths.promoted(key, token, self._now())
        told = self._leases.tell(token, Granted(self.stock.sessions[key].generation))
        self._spares.want(key)
        return told

    # --- release

    def release(self, key: SessionKey, token: int, name: str | None) -> None:
        """Take a region out, or the session (None), on its writer's behalf; LeaseHeldError while another maps it."""
        session = self.stock.session(key)
        if name is not None:
            self.regions.release(key, token, name)
            return
        transitions.check_writer(session, token)
        transitions.check_unmapped(session, None, besides=token)
        self._remove(session)
        self.tally.released += len(session.regions)

    def release_by_command(self, key: SessionKey, name: str | None, *, force: bool) -> None:
        """Take out a region, or a session (None). LeaseHeldError while somebody maps it, unless ``force``: then whoever
        does is told, and goes on with descriptors of its own.
        """
        session = self.stock.session(key)
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
                self._leases.tell(lease.token, Released(name))
        self.stock.commit(without)
        self.tally.released += 1

    # --- the forward state

    def record_copy(self, key: SessionKey, token: int) -> tuple[Session, Lease, int]:
        """The record of the generation that is now: writable for its writer, else read-only. The caller owns it."""
        session = self.stock.session(key)
        lease = session.lease(token)
        if lease is None:
            raise StaleGenerationError(f"the lease on {key.name!r} has ended")
        held = self._record(session)
        try:
            fd = copies((held,))[0] if lease.role is Role.WRITER else memfd.read_only(held)
        except OSError as error:
            raise QuotaError(f"the record: {error.strerror}") from None
        return session, lease, fd

    def state(self, key: SessionKey) -> Carried:
        """The forward state at this moment."""
        session = self.stock.session(key)
        return self.stock.holdings[key].newest(session)

    def counters(self) -> Counters:
        """A snapshot."""
        # A copy: metrics are read by a thread of their own.
        self.tally.early_deaths = self._early_deaths.total
        return snapshot(self.tally, list(self.stock.sessions.values()), self._keeping.unkept)

    def _record(self, session: Session) -> int:
        try:
            return self.stock.holdings[session.key].record(session)
        except OSError as error:
            raise QuotaError(f"the record: {error.strerror}") from None

    # --- how a session changes

    async def _make_session(
        self, key: SessionKey, lease: Lease, capacity: int, keep: float | None, grants: tuple[Grant, ...]
    ) -> None:
        if capacity > self.quota.state_bytes:
            raise TooLargeError(f"{capacity} bytes of state; at most {self.quota.state_bytes}")
        session = Session(key, self.stock.new_id(), capacity, keep, grants, carried=Carried(0, 1, None))
        session = transitions.attach(session, lease)
        name = session_name(session.id)
        self.stock.reserve(key.uid, of_session(capacity))
        self._making[key] = lease.token
        try:
            holdings = SessionFds.create(session)
            try:
                holdings.ledger.commit(session)
                await self._keeping.keep(name, (holdings.ledger.fd,))
            except BaseException:
                self._keeping.forget(name)
                holdings.close()
                raise
        except OSError as error:
            raise QuotaError(f"no room for a session: {error.strerror}") from None
        finally:
            del self._making[key]
            self.stock.give_up(key.uid, of_session(capacity))
        self.stock.add(session, holdings)

    async def _keep_record(self, key: SessionKey, token: int) -> None:
        """Before a writer hears of its record, see that the record is safe; the lease ends if it cannot be."""
        session = self.stock.session(key)
        generation = session.generation
        if session.carried is not None:
            try:
                await self._spares.see_kept(session, self._record(session))
            except BaseException:
                self._end_lease(key, token)
                raise
        now = self.stock.sessions.get(key)
        # Its name may be another session's by now.
        if now is None or (now.id, now.generation) != (session.id, generation):
            self._keeping.forget(record_name(session.id, generation))
            raise StaleGenerationError(f"fenced off before it began: {key.name!r}")
        if now.carried is not None:
            self.stock.commit(transitions.record_kept(now))

    def _end_lease(self, key: SessionKey, token: int, *, in_order: bool = False) -> None:
        self._leases.drop(token)
        session = self.stock.sessions.get(key)
        if session is None or session.lease(token) is None:
            return
        now = self._now()
        if session.writer is not None and session.writer.token == token:
            process, generation = session.writer.process, session.generation
            self._early_deaths.ended(key, token, process, generation, now, in_order=in_order)
            self._change_generation(
                session, lambda carried: transitions.end_lease(session, token, now, carried, in_order=in_order)
            )
            self._begin_succession(key)
        else:
            self.stock.commit(transitions.end_lease(session, token, now, None), must=False)
        self._schedule()

    def _begin_succession(self, key: SessionKey) -> None:
        if transitions.heir(self.stock.sessions[key]) is None:
            return
        self._successions.spawn(self._inherit(key))

    async def _inherit(self, key: SessionKey) -> None:
        """Promote the standby that is to go on with an orphaned session; the next one if that fails."""
        tried: set[int] = set()
        while (session := self.stock.sessions.get(key)) is not None:
            heir = transitions.heir(session)
            if heir is None or heir.token in tried:
                return
            tried.add(heir.token)
            with suppress(VaultError):
                await self.promote(key, heir.token)

    def _change_generation(self, session: Session, change: Callable[[Carried], Session]) -> None:
        holdings = self.stock.holdings[session.key]
        after = change(holdings.cut(session))
        # Even if it cannot be written down: a writer that is fenced off is so at once.
        self.stock.commit(after, must=False)
        holdings.renew_record(after)
        self._keeping.forget(record_name(session.id, session.generation))
        self.tally.fences += 1

    def _evict(self, session: Session) -> None:
        """A user that has more than another one lets go of what it does not use."""
        self.tally.expired += len(session.regions)
        self._remove(session)

    def _remove(self, session: Session) -> None:
        self.stock.remove(session)
        self._early_deaths.forget(session.key)
        self._spares.drop(session.key)
        for lease in session.leases:
            # A standby would wait for ever.
            self._leases.tell(lease.token, Released(None))
            self._leases.drop(lease.token)

    # --- time

    def _schedule(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        due = [at for at in map(transitions.expires_at, self.stock.sessions.values()) if at is not None]
        if due:
            # No wait is longer than a minute: this clock goes on while the machine sleeps, the loop's does not.
            delay = min(max(min(due) - self._now(), 0.0), 60.0)
            self._expiry = asyncio.get_running_loop().call_later(delay, self.expire)

    def expire(self) -> None:
        """Release the sessions whose time has come."""
        now = self._now()
        for session in list(self.stock.sessions.values()):
            due = transitions.expires_at(session)
            if due is not None and due <= now:
                self.tally.expired += len(session.regions)
                self._remove(session)
        self._schedule()
