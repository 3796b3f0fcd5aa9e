"""Second claims: what programs under the preload say of their second drivers, read from their own memory files.

A client that asks for a second driver in its environment is looked at again and again; all other clients never. A
claim is the client's word about itself alone (`mpsguard.preload.second_claim`). Looking takes threads, of which a user
has one: a process can make a look wait.
"""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from mpsguard.linux.descriptors import foreign_fd
from mpsguard.linux.identity import ROOT, ProcessKey, UserKey
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.side_threads import SharedThreads
from mpsguard.preload import second_claim, second_move, zone_table
from mpsguard.preload.second_claim import ClaimPhase, SecondClaim
from mpsguard.preload.second_move import MoveState
from mpsguard.preload.zone_table import TableError

_READERS: Final = 16
_PAUSE: Final = 2.0
"""Seconds between two looks at a client; a look costs some 50 us, and the first ones, for its table, up to 50 ms."""
_PAUSE_URGENT: Final = 0.1
"""The same of a client that may be going over."""
_URGENT_FOR: Final = 30.0
"""Seconds after a fault, or after its second driver came, for which a client may be going over."""
_CLOSE_WITHIN: Final = 0.5


class _Claimant:
    def __init__(self, pidfd: int, user: UserKey) -> None:
        self.pidfd = pidfd
        self.user = user
        self.table = -1
        """The client's table once it has been found."""
        self.claim: SecondClaim | None = None
        self.urgent_until = 0.0
        self.looking = False
        self.timer: asyncio.TimerHandle | None = None
        self.last: Callable[[SecondClaim], None] | None = None
        """Takes the last claim of a client that has ended."""
        self.looked_last = False
        self.move = MoveState()
        """What it has answered last."""
        self.asking: list[asyncio.Future[MoveState | None]] = []
        """Take what the next look shows."""
        self.asked: list[asyncio.Future[MoveState | None]] = []
        """Take what this look shows."""

    @staticmethod
    def tell(asked: list[asyncio.Future[MoveState | None]], state: MoveState | None) -> None:
        for each in asked:
            if not each.done():
                each.set_result(state)
        asked.clear()

    def close(self) -> None:
        for fd in (self.pidfd, self.table):
            if fd >= 0:
                os.close(fd)


class SecondClaims:
    """Owns a pidfd of each client that has, or may have, a second driver, and its table. Made in a running loop."""

    def __init__(
        self, changed: Callable[[ProcessKey, SecondClaim], None], answered: Callable[[ProcessKey, MoveState], None]
    ) -> None:
        """``changed`` is called with each claim that differs from the last one, ``answered`` with each such answer."""
        self._changed = changed
        self._answered = answered
        self._loop = asyncio.get_running_loop()
        self._watched: dict[ProcessKey, _Claimant] = {}
        self._readers = SharedThreads[UserKey]("second claims", _READERS, 1, privileged=(ROOT,))

    def watch(self, handle: ProcessHandle, user: UserKey) -> None:
        """Begin to look at a client; again, if it is looked at already. ``handle`` may be closed afterwards."""
        key = handle.key
        if key in self._watched:
            return
        # Without a descriptor it is not looked at: it counts as one that says nothing.
        with suppress(OSError):
            self._watched[key] = _Claimant(os.dup(handle.fileno()), user)
            self._look_soon(key, 0.0)

    def hurry(self, key: ProcessKey) -> None:
        """Look often for a while: the client's lane has faulted, or its second driver has come."""
        watched = self._watched.get(key)
        if watched is not None:
            watched.urgent_until = time.monotonic() + _URGENT_FOR
            self._look_soon(key, 0.0)

    def token_of(self, key: ProcessKey) -> int:
        """Return the word by which a client knows that it is meant; 0: it has said none."""
        watched = self._watched.get(key)
        return watched.move.token if watched is not None else 0

    async def looked(self, key: ProcessKey) -> MoveState | None:
        """Return what a client has answered, by a look that begins from now on; None once it has ended."""
        watched = self._watched.get(key)
        if watched is None or watched.last is not None:
            return None
        asking: asyncio.Future[MoveState | None] = self._loop.create_future()
        watched.asking.append(asking)
        self.hurry(key)
        return await asking

    def of(self, key: ProcessKey) -> SecondClaim | None:
        """Return what a client said last; None if it has said nothing."""
        watched = self._watched.get(key)
        return watched.claim if watched is not None else None

    def ended(self, key: ProcessKey, last: Callable[[SecondClaim], None]) -> None:
        """Let go of a client that has ended; ``last`` is called with its last claim, which its table still has."""
        watched = self._watched.get(key)
        if watched is None:
            return
        watched.last = last
        watched.tell(watched.asking, None)
        watched.tell(watched.asked, None)
        self._look_soon(key, 0.0)

    def close(self) -> None:
        """Give everything back; safe to call twice."""
        self._readers.close(_CLOSE_WITHIN)
        for watched in self._watched.values():
            if watched.timer is not None:
                watched.timer.cancel()
            watched.tell(watched.asking, None)
            watched.tell(watched.asked, None)
            # What a thread still looks at is not closed under it.
            if not watched.looking:
                watched.close()
        self._watched.clear()

    def _look_soon(self, key: ProcessKey, pause: float) -> None:
        watched = self._watched[key]
        if watched.looking:
            return
        if watched.timer is not None:
            watched.timer.cancel()
        watched.timer = self._loop.call_later(pause, self._begin, key)

    def _begin(self, key: ProcessKey) -> None:
        watched = self._watched[key]
        watched.timer = None
        watched.looking = True
        watched.asked += watched.asking
        watched.asking.clear()
        try:
            self._readers.run(watched.user, partial(self._look, key, watched))
        except RuntimeError:  # no thread is to be had
            watched.looking = False
            self._look_soon(key, _PAUSE)

    def _look(self, key: ProcessKey, watched: _Claimant) -> None:
        """On a thread beside the loop."""
        claim: SecondClaim | None = None
        move: MoveState | None = None
        with suppress(OSError, TableError):
            if watched.table < 0 and watched.last is None:
                watched.table = _find(watched.pidfd, key.pid)
            if watched.table >= 0:
                claim = second_claim.read(watched.table)
                move = second_move.read(watched.table)
        with suppress(RuntimeError):  # the loop has ended, and this process soon will
            self._loop.call_soon_threadsafe(self._looked, key, watched, claim, move)

    def _looked(
        self,
        key: ProcessKey,
        watched: _Claimant,
        claim: SecondClaim | None,
        move: MoveState | None,
    ) -> None:
        watched.looking = False
        if key not in self._watched:  # closed meanwhile
            watched.close()
            return
        if watched.last is None:
            if claim is not None and claim != watched.claim:
                watched.claim = claim
                self._changed(key, claim)
            if move is not None and move != watched.move:
                watched.move = move
                self._answered(key, move)
            if move is not None:
                watched.tell(watched.asked, move)
            over = watched.claim is not None and watched.claim.phase is ClaimPhase.REFUSED
            if not over or watched.asking or watched.asked:
                self._look_soon(key, _PAUSE_URGENT if time.monotonic() < watched.urgent_until else _PAUSE)
            return
        # A look that was under way when it ended may have come before its last word.
        if not watched.looked_last:
            watched.looked_last = True
            self._look_soon(key, 0.0)
            return
        del self._watched[key]
        watched.close()
        if claim is not None:
            watched.last(claim)


def _find(pidfd: int, pid: int) -> int:
    """Return a descriptor of the table with a claim in it; -1 if there is none yet."""
    found = -1
    for file in foreign_fd.memory_files(pidfd, pid, zone_table.LINK, zone_table.MOST_OF_A_PROCESS):
        try:
            if found < 0 and second_claim.read(file) is not None:
                found = file
        except (OSError, TableError):
            pass
        if file != found:
            os.close(file)
    return found
