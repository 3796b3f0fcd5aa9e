"""Accepted peers that are not served yet: one queue per user, served in turns.

The kernel's backlog is one queue for all users: if one user filled it, the peers of all others would wait behind it.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Arrivals(Generic[T]):
    """The queues, by uid. Pure bookkeeping: the caller closes and serves peers."""

    def __init__(self, most_of_a_user: int) -> None:
        """``most_of_a_user``: length of one queue; one more replaces its oldest."""
        self._most = most_of_a_user
        self._queues: dict[int, deque[T]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, uid: int, arrival: T) -> T | None:
        """Append ``arrival`` to its user's queue, and return the one that it displaces, if any."""
        queue = self._queues.setdefault(uid, deque())
        queue.append(arrival)
        return queue.popleft() if len(queue) > self._most else None

    def turn(self, may: Callable[[int], bool]) -> list[T]:
        """Remove and return the first arrival of each user for which ``may`` is true."""
        first = [queue.popleft() for uid, queue in self._queues.items() if may(uid)]
        self._queues = {uid: queue for uid, queue in self._queues.items() if queue}
        return first

    def clear(self) -> list[T]:
        """Remove and return all arrivals, grouped by user."""
        every = [arrival for queue in self._queues.values() for arrival in queue]
        self._queues.clear()
        return every
