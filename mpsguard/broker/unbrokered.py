"""Clients that came to a lane past the guard: listed by the control daemon, and known to nobody.

Private directories keep other users out; what gets there all the same (root, a member of the guard's group, a client of
an earlier version's lane) is found here. As a client it is watched, counted among those that could be at fault, and
can be named.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Set
from contextlib import suppress

from mpsguard.lanes.command import CommandFailedError
from mpsguard.lanes.lane import Lane
from mpsguard.linux import procfs
from mpsguard.model import LaneState, ProcessKey


def is_anothers(listed: ProcessKey, held: Iterable[ProcessKey]) -> bool:
    """Whether a listed pid was that of an ended client, whose work is ``held`` and therefore listed, before it was this
    process'."""
    return any(each.pid == listed.pid and each.start_ticks != listed.start_ticks for each in held)


class Listing:
    """What one lane's control daemon listed before. Decides who is a stranger; asks nobody but /proc/PID/stat.

    A pid alone proves little: a daemon may list a client that has ended, and its pid be given away. A stranger is a
    process that two lists in a row name while nobody knows it; not if its pid was a client's and has been listed since.
    """

    def __init__(self) -> None:
        self._suspects: dict[int, ProcessKey] = {}
        self._ended: set[int] = set()

    def client_ended(self, pid: int) -> None:
        """A known client has ended: it may be listed for a while."""
        self._ended.add(pid)

    def strangers(self, listed: Iterable[int], known: Set[int]) -> list[int]:
        """Take in a new list; the pids in it that belong to strangers."""
        pids = set(listed)
        self._ended &= pids - known
        unknown: dict[int, ProcessKey] = {}
        for pid in sorted(pids - known - self._ended):
            with suppress(ProcessLookupError):
                unknown[pid] = procfs.process_key(pid)
        found = [pid for pid, key in unknown.items() if self._suspects.get(pid) == key]
        self._suspects = unknown
        return found


class Reconciliation:
    """Compares one lane's list with the clients that are known, again and again."""

    def __init__(
        self, lane: Lane, known: Callable[[], set[int]], found: Callable[[Lane, int], Awaitable[None]]
    ) -> None:
        """``known`` gives the pids of clients, of those about to be, and of the guard's own.

        ``found`` gets a stranger's.
        """
        self._lane = lane
        self._known = known
        self._found = found
        self._listing = Listing()

    def client_ended(self, pid: int) -> None:
        """See `Listing`."""
        self._listing.client_ended(pid)

    async def run(self) -> None:
        """Look every `check_interval` until cancelled; a list that cannot be had is left out."""
        while True:
            await asyncio.sleep(self._lane.spec.check_interval)
            if self._lane.report.state is not LaneState.ACTIVE or not self._lane.report.servers:
                continue
            # Before the question: who comes while it is answered is known after it.
            known = self._known()
            try:
                listed = await self._lane.clients()
            except CommandFailedError:
                continue
            for pid in self._listing.strangers(listed, known | self._known()):
                await self._found(self._lane, pid)
