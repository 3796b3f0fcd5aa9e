"""Unbrokered clients: clients that a control daemon lists, and that did not connect through the guard.

Private directories keep other users out; this finds what gets there all the same: root, a member of the guard's group,
a client of an earlier version's lane. As a client, it is watched and can be a candidate or a culprit.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Set
from contextlib import suppress

from mpsguard.guard.broker import class_admission, client_table
from mpsguard.guard.broker.client_table import ClientTable
from mpsguard.guard.config import DomainConfig
from mpsguard.guard.lanes.command import CommandFailedError
from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.model import Client, LaneState
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import peer_user
from mpsguard.linux.processes.stat_reader import StatReader


def is_anothers(listed: ProcessKey, held: Iterable[ProcessKey]) -> bool:
    """Return whether a listed pid belonged to an ended client before it was reused by the process ``listed``.

    The work of such a client is ``held``, and therefore still listed.
    """
    return any(each.pid == listed.pid and each.start_ticks != listed.start_ticks for each in held)


class Listing:
    """The earlier lists of one lane's control daemon. It decides which listed processes are strangers.

    A pid alone proves little: a daemon may list a client that has ended, with a pid that was reused. A stranger is an
    unknown process in two consecutive lists; not one with a pid of an ended client that has been listed ever since. The
    only other source is /proc/PID/stat.
    """

    def __init__(self, stats: StatReader) -> None:
        self._stats = stats
        self._suspects: dict[int, ProcessKey] = {}
        self._ended: set[int] = set()

    def client_ended(self, pid: int) -> None:
        """Remember the pid of a client that has ended: it may be listed for a while."""
        self._ended.add(pid)

    async def strangers(self, listed: Iterable[int], known: Set[int]) -> list[int]:
        """Add a new list, and return the pids in it that belong to strangers."""
        pids = set(listed)
        self._ended &= pids
        unknown: dict[int, ProcessKey] = {}
        for pid in sorted(pids - known - self._ended):
            # One that cannot be read in time is no suspect yet.
            with suppress(ProcessLookupError, TimeoutError):
                unknown[pid] = await self._stats.key(pid)
        found = [pid for pid, key in unknown.items() if self._suspects.get(pid) == key]
        self._suspects = unknown
        return found


class Reconciliation:
    """Compares one lane's list with the known clients, periodically."""

    def __init__(
        self,
        lane: Lane,
        known: Callable[[], set[int]],
        found: Callable[[Lane, int], Awaitable[None]],
        stats: StatReader,
    ) -> None:
        """Create it; `run` starts it.

        Args:
            lane: the lane.
            known: returns the pids of clients, of processes that connect for the first time, and of the guard's own.
            found: called with the lane and the pid of a stranger.
            stats: looks up processes.
        """
        self._lane = lane
        self._known = known
        self._found = found
        self._listing = Listing(stats)

    def client_ended(self, pid: int) -> None:
        """See `Listing`."""
        self._listing.client_ended(pid)

    async def run(self) -> None:
        """Compare every `check_interval` seconds until cancelled.

        A time is skipped if the daemon does not answer, or no descriptor is left to look with.
        """
        while True:
            await asyncio.sleep(self._lane.spec.check_interval)
            if self._lane.report.state is not LaneState.ACTIVE or not self._lane.report.servers:
                continue
            with suppress(CommandFailedError, OSError):
                await self._compare()

    async def _compare(self) -> None:
        # Before the list is requested: a client that connects meanwhile is in the second call's result.
        known = self._known()
        listed = await self._lane.clients()
        for pid in await self._listing.strangers(listed, known | self._known()):
            await self._found(self._lane, pid)


class Adoption:
    """Enters clients of a domain's lanes that did not come to this guard: /proc describes them."""

    def __init__(
        self,
        clients: ClientTable,
        stats: StatReader,
        *,
        settings: Callable[[], DomainConfig],
        held: Callable[[], Iterable[ProcessKey]],
        recalled: Callable[[Client], Client],
    ) -> None:
        """Create it.

        Args:
            clients: the domain's.
            stats: looks up processes.
            settings: returns the domain's configuration.
            held: returns the ended clients with a lifeline.
            recalled: returns a client with what an earlier guard knew of its second driver.
        """
        self._clients = clients
        self._stats = stats
        self._settings = settings
        self._held = held
        self._recalled = recalled

    async def adopt_all(self, lane: Lane) -> None:
        """Enter the clients that came before this guard did; raise CommandFailedError or OSError."""
        for pid in await lane.clients():
            await self.adopt(lane, pid, before=True)

    async def adopt(self, lane: Lane, pid: int, *, before: bool = False) -> None:
        """Enter a client that the control daemon lists; ``before``: it came before this guard did."""
        try:
            handle = await self._stats.hold(pid)
        except (ProcessLookupError, TimeoutError):  # a client that cannot be read now is listed again
            return
        if is_anothers(handle.key, self._held()):
            handle.close()
            return
        try:
            handle.key = self._clients.key_now(handle.key)
            owner = peer_user.credentials_of(pid, handle.fileno())
            told = await self._clients.read(handle.key, owner.user)
        except BaseException as error:
            handle.close()
            if isinstance(error, ProcessLookupError):
                return
            raise
        if self._clients.get(handle.key) is not None:
            handle.close()
            return
        settings = self._settings()
        client = client_table.identify(
            handle,
            owner,
            told,
            domain=settings.name,
            lane=lane.spec.name,
            adopted=before,
            unbrokered=not before,
            service_class=class_admission.class_before(settings, owner, told) if before else None,
        )
        self._clients.add(self._recalled(client), handle)
