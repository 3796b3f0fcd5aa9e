"""Messages to the service manager from an event loop, which never waits for the manager; it may be busy for seconds."""

import asyncio
import socket
from collections import deque
from typing import Final, NamedTuple

from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.descriptors.fd_copies import copies
from mpsguard.linux.systemd import service_manager

_MOST: Final = 2048
"""Messages that wait at most; the guard's own are few, and each held lifeline has two."""


class _Message(NamedTuple):
    text: bytes
    fds: tuple[int, ...]
    """Copies, owned by the queue."""


class NotifyQueue:
    """Sends in order. Owns what waits, and the socket on which it waits. Used in one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[_Message] = deque()
        self._socket: socket.socket | None = None
        """There while something waits."""
        self._sent_all = asyncio.Event()
        self._sent_all.set()

    def notify(self, *assignments: str, fds: tuple[int, ...] = ()) -> bool:
        """Send ``KEY=VALUE`` lines, and copies of ``fds``, now or when the service manager reads again.

        Return False if there is no service manager, no descriptor, or too much waits already.
        """
        text = "\n".join(assignments).encode()
        try:
            if self._socket is not None:
                return self._put(text, fds)
            sock = service_manager.connect()
            if sock is None:
                return False
            try:
                service_manager.send(sock, text, fds)
            except BlockingIOError:
                self._socket = sock.dup()
                asyncio.get_running_loop().add_writer(self._socket.fileno(), self._send_waiting)
                return self._put(text, fds)
            finally:
                sock.close()
        except OSError:
            return False
        return True

    async def flushed(self, within: float) -> bool:
        """Return whether everything was sent within so many seconds."""
        try:
            async with asyncio.timeout(within):
                await self._sent_all.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Close everything; what waits is not sent."""
        sock, self._socket = self._socket, None
        if sock is not None:
            asyncio.get_running_loop().remove_writer(sock.fileno())
            sock.close()
        for message in self._waiting:
            close_all(message.fds)
        self._waiting.clear()
        self._sent_all.set()

    def _put(self, text: bytes, fds: tuple[int, ...]) -> bool:
        if len(self._waiting) >= _MOST:
            return False
        self._waiting.append(_Message(text, copies(fds)))
        self._sent_all.clear()
        return True

    def _send_waiting(self) -> None:
        assert self._socket is not None
        try:
            while self._waiting:
                service_manager.send(self._socket, *self._waiting[0])
                close_all(self._waiting.popleft().fds)
        except BlockingIOError:
            return
        except OSError:
            # There is no service manager any more.
            pass
        self.close()
