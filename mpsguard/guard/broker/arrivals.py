"""Accepted peers that are not served yet: one queue per user, served in turns.

The kernel's backlog is one queue for all users: if one user filled it, the peers of all others would wait behind it.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from mpsguard.linux.user_queue import UserQueue

T = TypeVar("T")


class Arrivals(Generic[T]):
    """The queues, by user. Pure bookkeeping: the caller closes and serves peers."""

    def __init__(self, most_of_a_user: int, most: int) -> None:
        """``most_of_a_user``: length of one queue; one more replaces its oldest.

        ``most``: length of all queues; one more replaces the oldest of the longest queue.
        """
        self._most_of_a_user = most_of_a_user
        self._most = most
        self._queue: UserQueue[int, T] = UserQueue()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, uid: int, arrival: T) -> T | None:
        """Append ``arrival`` to its user's queue, and return the one that it displaces, if any."""
        self._queue.add(uid, arrival)
        if len(self._queue) > self._most:
            return self._queue.pop_first(self._queue.heaviest())
        return self._queue.pop_first(uid) if self._queue.of(uid) > self._most_of_a_user else None

    def drop(self, has_left: Callable[[T], bool], most: int) -> list[T]:
        """Remove and return the first arrivals of each user that have left already, at most ``most`` of each."""
        gone: list[T] = []
        for uid in self._queue.users():
            last = len(gone) + most
            while self._queue.of(uid) and len(gone) < last and has_left(self._queue.first(uid)):
                gone.append(self._queue.pop_first(uid))
        return gone

    def turn(self, may: Callable[[int], bool]) -> list[T]:
        """Remove and return the first arrival of each user for which ``may`` is true."""
        return [self._queue.pop_first(uid) for uid in self._queue.users() if may(uid)]

    def clear(self) -> list[T]:
        """Remove and return all arrivals, grouped by user."""
        return self._queue.clear()
