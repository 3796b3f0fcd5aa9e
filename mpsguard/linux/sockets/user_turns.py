"""Readiness of strangers' sockets: a few of each user's in one pass of the event loop.

asyncio handles all that is ready in one pass. A thousand connections that one user closes at once would take a third of
a second, in which no other peer's next step is made. Here the sockets of each user are in an epoll instance of its own,
and a pass takes few of its events, however many are ready (epoll(7): the others stay ready, in the order of coming).
"""

import asyncio
import select
from typing import Final

QUOTA: Final = 4
"""Events of one user in a pass. Each leads to some 0.1 ms of work, and a handshake of a new process takes five
passes: with sixteen users that flood, it waits for 32 ms."""

_ALWAYS: Final = select.EPOLLERR | select.EPOLLHUP
"""Reported without being asked for; whatever is waited for would not block then."""


class _UserSockets:
    """Owns the epoll instance of one user, and knows what is waited for."""

    def __init__(self) -> None:
        self.open = 0
        """Sockets that were entered and have not left."""
        self._epoll = select.epoll()
        self._waiting: dict[int, dict[int, asyncio.Future[None]]] = {}
        """Futures by descriptor and event."""
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._turn)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, fd: int, event: int, ready: asyncio.Future[None]) -> None:
        events = self._waiting.setdefault(fd, {})
        assert event not in events, "one task may wait for an event of a socket"
        events[event] = ready
        self._epoll.register(fd, event) if len(events) == 1 else self._epoll.modify(fd, sum(events))

    def remove(self, fd: int, event: int) -> None:
        events = self._waiting[fd]
        del events[event]
        if events:
            self._epoll.modify(fd, sum(events))
        else:
            del self._waiting[fd]
            self._epoll.unregister(fd)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _turn(self) -> None:
        for fd, seen in self._epoll.poll(0, QUOTA):
            for event, ready in self._waiting[fd].items():
                if seen & (event | _ALWAYS) and not ready.done():
                    ready.set_result(None)


class UserTurns:
    """Waits for sockets of users; has a descriptor for each user with a socket that was entered."""

    def __init__(self) -> None:
        self._users: dict[int, _UserSockets] = {}

    def enter(self, uid: int) -> None:
        """Prepare for a socket of ``uid``; `leave` when it is closed."""
        watched = self._users.get(uid)
        if watched is None:
            watched = self._users[uid] = _UserSockets()
        watched.open += 1

    def leave(self, uid: int) -> None:
        """A socket of ``uid`` that was entered is closed, or about to be."""
        self._users[uid].open -= 1
        self._close_if_unused(uid)

    async def readable(self, uid: int, fd: int, or_else: asyncio.Future[None] | None = None) -> None:
        """Wait until ``fd``, a socket of ``uid``, can be read without blocking, or until ``or_else`` is done.

        It must have been entered, and stay open until then.
        """
        await self._ready(uid, fd, select.EPOLLIN, or_else)

    async def writable(self, uid: int, fd: int) -> None:
        """Wait until ``fd``, a socket of ``uid``, can be written to without blocking; as `readable`."""
        await self._ready(uid, fd, select.EPOLLOUT)

    async def _ready(self, uid: int, fd: int, event: int, or_else: asyncio.Future[None] | None = None) -> None:
        watched = self._users[uid]
        ready = asyncio.get_running_loop().create_future() if or_else is None else or_else
        watched.add(fd, event, ready)
        try:
            await ready
        finally:
            watched.remove(fd, event)
            self._close_if_unused(uid)

    def _close_if_unused(self, uid: int) -> None:
        watched = self._users[uid]
        if not watched.open and not len(watched):
            del self._users[uid]
            watched.close()
