"""Peers that were accepted and are not served yet: each user's in a line of its own, taken by turns.

The kernel's backlog is one line for all. A user that fills it would have everybody behind it wait for each of its own.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Arrivals(Generic[T]):
    """The lines, by uid. Effects are the caller's."""

    def __init__(self, most_of_a_user: int) -> None:
        """``most_of_a_user``: in one line; one more takes the place of its oldest."""
        self._most = most_of_a_user
        self._lines: dict[int, deque[T]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, uid: int, arrival: T) -> T | None:
        """Put one at the end of its user's line; the one that has to go for it, if any."""
        line = self._lines.setdefault(uid, deque())
        line.append(arrival)
        return line.popleft() if len(line) > self._most else None

    def turn(self, may: Callable[[int], bool]) -> list[T]:
        """The first of each user that ``may``."""
        taken = [line.popleft() for uid, line in self._lines.items() if may(uid)]
        self._lines = {uid: line for uid, line in self._lines.items() if line}
        return taken

    def clear(self) -> list[T]:
        """All of them, by user."""
        every = [arrival for line in self._lines.values() for arrival in line]
        self._lines.clear()
        return every
