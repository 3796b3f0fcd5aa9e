"""Lease holders: their processes, watched by pidfd, and the connections of those that are connected."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.stat_reader import StatReader
from mpsguard.linux.tasks import beside
from mpsguard.vault.server.session_fds import SessionFds
from mpsguard.vault.wire.region import Lease, SessionKey, SessionRecord
from mpsguard.vault.wire.wire import Notice

Listener = Callable[[Notice], bool]
"""Passes a notice to a lease holder and returns whether it was sent; never waits, never raises."""


async def hold_all(sessions: Iterable[tuple[SessionRecord, SessionFds]], stats: StatReader) -> dict[int, ProcessHandle]:
    """Hold the processes of all leases of sessions, by token, without those that have ended.

    One that keeps its start time from being read in time counts as ended: it executes another program.

    Raises:
        OSError: there is no descriptor for one, which says nothing of its process.
    """
    held: dict[int, ProcessHandle] = {}

    async def hold(lease: Lease) -> None:
        with suppress(ProcessLookupError, TimeoutError):
            held[lease.token] = await stats.hold_this(lease.process)

    try:
        async with beside(*(hold(lease) for session, _ in sessions for lease in session.leases)) as holding:
            await asyncio.gather(*holding)
    except BaseException:
        for handle in held.values():
            handle.close()
        raise
    return held


class _Held:
    def __init__(self, key: SessionKey, handle: ProcessHandle, listener: Listener | None) -> None:
        self.key = key
        self.handle = handle
        self.listener = listener


class Leases:
    """Owns the pidfds of all lease holders."""

    def __init__(self, ended: Callable[[SessionKey, int], None]) -> None:
        """Create an empty table.

        Args:
            ended: called with session and token, once, after a holder's process has ended; it has `drop` called.
        """
        self._ended = ended
        self._held: dict[int, _Held] = {}

    def has(self, token: int) -> bool:
        """Return whether any session has a lease with that token."""
        return token in self._held

    def add(self, key: SessionKey, token: int, handle: ProcessHandle, listener: Listener | None) -> None:
        """Add a holder and take ownership of its handle."""
        self._held[token] = _Held(key, handle, listener)
        asyncio.get_running_loop().add_reader(handle.fileno(), self._on_end, key, token)

    def adopt(self, key: SessionKey, lease: Lease, handle: ProcessHandle | None) -> bool:
        """Add a holder that is not connected yet; return False if its process has ended, and has no handle."""
        if handle is None:
            return False
        self.add(key, lease.token, handle, None)
        return True

    def connect(self, token: int, listener: Listener) -> None:
        """Replace the connection of a holder that has reconnected."""
        self._held[token].listener = listener

    def is_connected_by(self, token: int, listener: Listener) -> bool:
        """Return whether ``listener`` is the current connection of that lease."""
        held = self._held.get(token)
        return held is not None and held.listener is listener

    def notify(self, token: int, notice: Notice) -> bool:
        """Pass a notice on; return False if the holder is not connected or does not read."""
        held = self._held.get(token)
        return held is not None and held.listener is not None and held.listener(notice)

    def drop(self, token: int) -> None:
        """Remove a holder; unknown tokens are ignored."""
        held = self._held.pop(token, None)
        if held is not None:
            asyncio.get_running_loop().remove_reader(held.handle.fileno())
            held.handle.close()

    def _on_end(self, key: SessionKey, token: int) -> None:
        asyncio.get_running_loop().remove_reader(self._held[token].handle.fileno())
        self._ended(key, token)

    def close(self) -> None:
        """Remove all holders."""
        for token in list(self._held):
            self.drop(token)
