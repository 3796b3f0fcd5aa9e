"""All sessions with their descriptors: written down when they change, counted, and given back when they go."""

from collections.abc import Callable
from contextlib import suppress

from mpsguard.vault import quota as quotas
from mpsguard.vault.errors import QuotaError, UnknownSessionError
from mpsguard.vault.fd_storage.background import BackgroundStorage
from mpsguard.vault.fd_storage.storage import record_name, region_name, session_name
from mpsguard.vault.quota import Quota, Usage
from mpsguard.vault.region import Session, SessionKey
from mpsguard.vault.session_fds import SessionFds


class SessionStore:
    """Owns the descriptors of every session."""

    def __init__(self, keeping: BackgroundStorage, quota: Quota, evict: Callable[[Session], None]) -> None:
        """``evict`` removes a session to make room for another user's."""
        self._evict = evict
        self.keeping = keeping
        self.quota = quota
        self.sessions: dict[SessionKey, Session] = {}
        self.holdings: dict[SessionKey, SessionFds] = {}
        self._usage: dict[int, Usage] = {}
        self._total = Usage()
        self._last_id = 0

    def new_id(self) -> int:
        """A number that was never given to a session or region of this vault."""
        self._last_id += 1
        return self._last_id

    def ids_up_to(self, last: int) -> None:
        """The guard before gave those away."""
        self._last_id = max(self._last_id, last)

    def session(self, key: SessionKey) -> Session:
        """The session as it is; UnknownSessionError if it is not."""
        session = self.sessions.get(key)
        if session is None:
            raise UnknownSessionError(f"there is no session {key.name!r}")
        return session

    def contents(self) -> dict[str, tuple[int, ...]]:
        """Everything a keeper is to have: names of parcels, and what is in them."""
        found: dict[str, tuple[int, ...]] = {}
        for key, session in self.sessions.items():
            holdings = self.holdings[key]
            if session.carried is None:
                found[record_name(session.id, session.generation)] = (holdings.record(session),)
            for region in session.regions.values():
                found[region_name(region.id)] = holdings.chunks[region.id]
            # Last: what a ledger speaks of is there before it.
            found[session_name(session.id)] = (holdings.ledger.fd,)
        return found

    def reserve(self, uid: int, more: Usage) -> None:
        """Keep room for what is under way, until `give_up`; QuotaError if there is none."""
        while True:
            try:
                quotas.check_room(self.quota, uid, self._usage.get(uid, Usage()), self._total, more)
            except quotas.FullError:
                victim = self._least_missed(uid, more)
                if victim is None:
                    raise
                self._evict(victim)
            else:
                self._account(uid, more)
                return

    def _least_missed(self, uid: int, more: Usage) -> Session | None:
        """Of the heaviest user that has one: the session on which nobody has held a lease for the longest time."""
        for heavy in quotas.heavier(self._usage, uid, more):
            idle = [each for key, each in self.sessions.items() if key.uid == heavy and each.idle_since is not None]
            if idle:
                return min(idle, key=lambda each: each.idle_since or 0.0)
        return None

    def give_up(self, uid: int, less: Usage) -> None:
        """Give room back."""
        self._account(uid, Usage() - less)

    def add(self, session: Session, holdings: SessionFds) -> None:
        """Enter a session that is written down; its holdings are ours from now on."""
        self.holdings[session.key] = holdings
        self.commit(session, must=False)

    def commit(self, session: Session, *, must: bool = True) -> None:
        """Write a session down, then let it be seen, and close what it no longer has.

        If it cannot be written down nothing changes, or, without ``must``, it is seen all the same.
        """
        key = session.key
        holdings = self.holdings[key]
        try:
            holdings.ledger.commit(session)
        except QuotaError:
            if must:
                raise
        before = self.sessions.get(key)
        self.sessions[key] = session
        if before is not None and before.regions is session.regions:
            return
        self._account(key.uid, _change(before, session))
        if before is not None:
            for name in before.regions.keys() - session.regions.keys():
                region = before.regions[name]
                self.keeping.forget(region_name(region.id))
                self.keeping.dispose(holdings.chunks.pop(region.id))

    def remove(self, session: Session) -> None:
        """Take a session out with everything it has."""
        holdings = self.holdings.pop(session.key)
        with suppress(QuotaError):
            holdings.ledger.commit(None)
        # The ledger first: without it, what is left of the session is nobody's at the next start.
        self.keeping.forget(session_name(session.id))
        for generation in {session.generation, holdings.spare_generation or session.generation}:
            self.keeping.forget(record_name(session.id, generation))
        for region in session.regions.values():
            self.keeping.forget(region_name(region.id))
        holdings.cut(session)
        self.keeping.dispose(holdings.close())
        del self.sessions[session.key]
        self._account(session.key.uid, Usage() - quotas.of_sessions((session,)))

    def close(self) -> None:
        """Give every descriptor back; what the keeper has stays there."""
        for holdings in self.holdings.values():
            self.keeping.dispose(holdings.close())
        self.holdings.clear()
        self.sessions.clear()

    def _account(self, uid: int, more: Usage) -> None:
        self._total += more
        used = self._usage.get(uid, Usage()) + more
        if used == Usage():
            self._usage.pop(uid, None)
        else:
            self._usage[uid] = used


def _change(before: Session | None, after: Session) -> Usage:
    """How much more a session holds than before. Looks into those regions only that are others now."""
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
