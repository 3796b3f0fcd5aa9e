"""Lease holders: their processes, watched by pidfd, and the connections of those that are connected."""

import asyncio
from collections.abc import Callable

from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.vault.region import Lease, SessionKey
from mpsguard.vault.wire import Notice

Listener = Callable[[Notice], bool]
"""Passes a notice to a lease holder and returns whether it was sent; never waits, never raises."""


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
            ended: called with session and token after a holder's process has ended; it must call `drop`.
        """
        self._ended = ended
        self._held: dict[int, _Held] = {}

    def has(self, token: int) -> bool:
        """Return whether any session has a lease with that token."""
        return token in self._held

    def add(self, key: SessionKey, token: int, handle: ProcessHandle, listener: Listener | None) -> None:
        """Add a holder and take ownership of its handle."""
        self._held[token] = _Held(key, handle, listener)
        asyncio.get_running_loop().add_reader(handle.fileno(), self._ended, key, token)

    def adopt(self, key: SessionKey, lease: Lease) -> bool:
        """Add a holder that is not connected yet; return False if its process has ended."""
        try:
            handle = ProcessHandle.hold(lease.process)
        except OSError:
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

    def close(self) -> None:
        """Remove all holders."""
        for token in list(self._held):
            self.drop(token)
