"""Accepted peers that are not served yet: one queue per user, served in turns.

The kernel's backlog is one queue for all users: if one user filled it, the peers of all others would wait behind it.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Arrivals(Generic[T]):
    """The queues, by uid. Pure bookkeeping: the caller closes and serves peers."""

    def __init__(self, most_of_a_user: int, most: int) -> None:
        """``most_of_a_user``: length of one queue; one more replaces its oldest.

        ``most``: length of all queues; one more replaces the oldest of the longest queue.
        """
        self._most_of_a_user = most_of_a_user
        self._most = most
        self._queues: dict[int, deque[T]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, uid: int, arrival: T) -> T | None:
        """Append ``arrival`` to its user's queue, and return the one that it displaces, if any."""
        queue = self._queues.setdefault(uid, deque())
        queue.append(arrival)
        self._count += 1
        if self._count > self._most:
            queue = max(self._queues.values(), key=len)
        elif len(queue) <= self._most_of_a_user:
            return None
        self._count -= 1
        return queue.popleft()

    def drop(self, has_left: Callable[[T], bool], most: int) -> list[T]:
        """Remove and return the first arrivals of each user that have left already, at most ``most`` of each."""
        gone: list[T] = []
        for queue in self._queues.values():
            last = len(gone) + most
            while queue and len(gone) < last and has_left(queue[0]):
                gone.append(queue.popleft())
        self._count -= len(gone)
        return gone

    def turn(self, may: Callable[[int], bool]) -> list[T]:
        """Remove and return the first arrival of each user for which ``may`` is true."""
        taken = [queue.popleft() for uid, queue in self._queues.items() if queue and may(uid)]
        self._count -= len(taken)
        self._queues = {uid: queue for uid, queue in self._queues.items() if queue}
        return taken

    def clear(self) -> list[T]:
        """Remove and return all arrivals, grouped by user."""
        every = [arrival for queue in self._queues.values() for arrival in queue]
        self._queues.clear()
        self._count = 0
        return every
