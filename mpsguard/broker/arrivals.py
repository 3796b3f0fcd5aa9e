"""Peers that were accepted and are not served yet: each user's in a line of its own, taken by turns.

The kernel's backlog is one line for all. A user that fills it would have everybody behind it wait for each of its own.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Arrivals(Generic[T]):
    """The lines, by uid. Effects are the caller's."""

    def __init__(self, most_of_a_user: int, most: int) -> None:
        """``most_of_a_user``: in one line; one more takes the place of its oldest.

        ``most``: in all lines; one more takes the place of the oldest in the longest.
        """
        self._most_of_a_user = most_of_a_user
        self._most = most
        self._lines: dict[int, deque[T]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, uid: int, arrival: T) -> T | None:
        """Put one at the end of its user's line; the one that has to go for it, if any."""
        line = self._lines.setdefault(uid, deque())
        line.append(arrival)
        self._count += 1
        if self._count > self._most:
            line = max(self._lines.values(), key=len)
        elif len(line) <= self._most_of_a_user:
            return None
        self._count -= 1
        return line.popleft()

    def turn(self, may: Callable[[int], bool]) -> list[T]:
        """The first of each user that ``may``."""
        taken = [line.popleft() for uid, line in self._lines.items() if line and may(uid)]
        self._count -= len(taken)
        self._lines = {uid: line for uid, line in self._lines.items() if line}
        return taken

    def clear(self) -> list[T]:
        """All of them, by user."""
        every = [arrival for line in self._lines.values() for arrival in line]
        self._lines.clear()
        self._count = 0
        return every
