"""Accepted peers that are not served yet: one queue per user, served in turns.

The kernel's backlog is one queue for all users: if one user filled it, the peers of all others would wait behind it.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from mpsguard.linux.identity import Credentials, UserKey

T = TypeVar("T")


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """An accepted peer that is not served yet: a user's flood costs accepting and nothing more."""

    fd: int
    """Of the connection: whatever takes the arrival out of its queue closes it or serves it."""
    peer: Credentials
    user: UserKey
    privileged: bool
    is_sealed: bool
    """Whether it is certain that no descriptors are in it."""


class Arrivals(Generic[T]):
    """The queues, by user. Pure bookkeeping: the caller closes and serves peers."""

    def __init__(self, most_of_a_user: int, most: int) -> None:
        """``most_of_a_user``: length of one queue; one more replaces its oldest.

        ``most``: length of all queues; one more replaces the oldest of the longest queue.
        """
        self._most_of_a_user = most_of_a_user
        self._most = most
        self._queues: dict[int, deque[T]] = {}
        """Of users that have arrivals. No `UserQueue`: none is withdrawn, and a flood pays for each step."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, uid: int, arrival: T) -> T | None:
        """Append ``arrival`` to its user's queue, and return the one that it displaces, if any."""
        queue = self._queues.get(uid)
        if queue is None:
            queue = self._queues[uid] = deque()
        queue.append(arrival)
        self._count += 1
        if self._count > self._most:
            return self._pop_first(max(self._queues, key=lambda each: len(self._queues[each])))
        return self._pop_first(uid) if len(queue) > self._most_of_a_user else None

    def drop(self, has_left: Callable[[T], bool], most: int) -> list[T]:
        """Remove and return the first arrivals of each user that have left already, at most ``most`` of each."""
        gone: list[T] = []
        for uid, queue in list(self._queues.items()):
            last = len(gone) + most
            while queue and len(gone) < last and has_left(queue[0]):
                gone.append(self._pop_first(uid))
        return gone

    def surplus(self, few: int, most: int) -> list[T]:
        """Remove and return the first arrivals of each user that has more than ``few``, at most ``most`` of each."""
        queues = list(self._queues.items())
        return [self._pop_first(uid) for uid, queue in queues for _ in range(min(len(queue) - few, most))]

    def turn(self, may: Callable[[int], bool]) -> list[T]:
        """Remove and return the first arrival of each user for which ``may`` is true."""
        return [self._pop_first(uid) for uid in list(self._queues) if may(uid)]

    def clear(self) -> list[T]:
        """Remove and return all arrivals, grouped by user."""
        every = [arrival for queue in self._queues.values() for arrival in queue]
        self._queues.clear()
        self._count = 0
        return every

    def _pop_first(self, uid: int) -> T:
        queue = self._queues[uid]
        self._count -= 1
        if len(queue) == 1:
            del self._queues[uid]
        return queue.popleft()
