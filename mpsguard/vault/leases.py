"""Who holds leases at this moment: the processes, watched by pidfd, and how to reach those that are connected."""

import asyncio
from collections.abc import Callable

from mpsguard.linux.process import ProcessHandle
from mpsguard.vault.region import Lease, SessionKey
from mpsguard.vault.wire import Notice

Listener = Callable[[Notice], bool]
"""Passes a notice on to whoever holds a lease, and says whether it could; never waits, never raises."""


class _Held:
    def __init__(self, key: SessionKey, handle: ProcessHandle, listener: Listener | None) -> None:
        self.key = key
        self.handle = handle
        self.listener = listener


class Leases:
    """Owns the pidfds of all holders."""

    def __init__(self, ended: Callable[[SessionKey, int], None]) -> None:
        """``ended`` is called with session and token once a holder's process is no more; it is to call `drop`."""
        self._ended = ended
        self._held: dict[int, _Held] = {}

    def has(self, token: int) -> bool:
        """Whether there is a lease of that token, of whatever session."""
        return token in self._held

    def add(self, key: SessionKey, token: int, handle: ProcessHandle, listener: Listener | None) -> None:
        """Enter a holder; its handle is ours from now on."""
        self._held[token] = _Held(key, handle, listener)
        asyncio.get_running_loop().add_reader(handle.fileno(), self._ended, key, token)

    def adopt(self, key: SessionKey, lease: Lease) -> bool:
        """Enter a holder that is not connected (yet); False if its process is no more."""
        try:
            handle = ProcessHandle.hold(lease.process)
        except OSError:
            return False
        self.add(key, lease.token, handle, None)
        return True

    def connect(self, token: int, listener: Listener) -> None:
        """A holder has come back on a new connection; the one before has no say any more."""
        self._held[token].listener = listener

    def speaks_for(self, token: int, listener: Listener) -> bool:
        """Whether ``listener`` is the connection of that lease now."""
        held = self._held.get(token)
        return held is not None and held.listener is listener

    def tell(self, token: int, notice: Notice) -> bool:
        """Pass a notice on; False if the holder is not connected, or does not listen."""
        held = self._held.get(token)
        return held is not None and held.listener is not None and held.listener(notice)

    def drop(self, token: int) -> None:
        """Forget a holder; unknown tokens do no harm."""
        held = self._held.pop(token, None)
        if held is not None:
            asyncio.get_running_loop().remove_reader(held.handle.fileno())
            held.handle.close()

    def close(self) -> None:
        """Forget them all."""
        for token in list(self._held):
            self.drop(token)
