"""Queue of users: one entry of each user after another, and each user's in the order of coming.

A user is whatever hashable key tells users apart: a uid, or what else shares are counted by. Pure bookkeeping, for one
thread or under the caller's lock.
"""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

U = TypeVar("U", bound=Hashable)
T = TypeVar("T")


class Ticket(NamedTuple, Generic[U]):
    """Identifies one entry of a queue, so that it can be withdrawn."""

    user: U
    number: int


class UserQueue(Generic[U, T]):
    """The lines of all users with waiting entries. A user that had its turn goes behind the others."""

    def __init__(self) -> None:
        self._lines: OrderedDict[U, OrderedDict[int, T]] = OrderedDict()
        """By user; the first is the next to have its turn. No line is empty."""
        self._numbers = itertools.count()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def users(self) -> list[U]:
        """Return the users with waiting entries, in the order of their turns."""
        return list(self._lines)

    def of(self, user: U) -> int:
        """Return how many entries of a user wait."""
        return len(self._lines.get(user, ()))

    def heaviest(self) -> U:
        """Return the user with most entries, the first in turn of several; ValueError if the queue is empty."""
        return max(self._lines, key=self.of)

    def add(self, user: U, entry: T) -> Ticket[U]:
        """Append an entry to its user's line."""
        number = next(self._numbers)
        line = self._lines.get(user)
        if line is None:
            line = self._lines[user] = OrderedDict()
        line[number] = entry
        self._count += 1
        return Ticket(user, number)

    def take(self, may: Callable[[U], bool] = lambda _: True) -> tuple[U, T] | None:
        """Remove and return the first entry of the next user for which ``may`` is true; None if there is none."""
        for user in self._lines:
            if may(user):
                entry = self.pop_first(user)
                if user in self._lines:
                    self._lines.move_to_end(user)
                return user, entry
        return None

    def withdraw(self, ticket: Ticket[U]) -> bool:
        """Remove an entry; False if it has left the queue already."""
        line = self._lines.get(ticket.user)
        if line is None or ticket.number not in line:
            return False
        del line[ticket.number]
        self._left(ticket.user)
        return True

    def first(self, user: U) -> T:
        """Return the oldest entry of a user that has one; KeyError otherwise."""
        return next(iter(self._lines[user].values()))

    def last(self, user: U) -> T:
        """Return the newest entry of a user that has one; KeyError otherwise."""
        return next(reversed(self._lines[user].values()))

    def pop_first(self, user: U) -> T:
        """Remove and return the oldest entry of a user that has one; KeyError otherwise."""
        return self._pop(user, last=False)

    def pop_last(self, user: U) -> T:
        """Remove and return the newest entry of a user that has one; KeyError otherwise."""
        return self._pop(user, last=True)

    def clear(self) -> list[T]:
        """Remove and return all entries, grouped by user."""
        every = [entry for line in self._lines.values() for entry in line.values()]
        self._lines.clear()
        self._count = 0
        return every

    def _pop(self, user: U, *, last: bool) -> T:
        _, entry = self._lines[user].popitem(last=last)
        self._left(user)
        return entry

    def _left(self, user: U) -> None:
        self._count -= 1
        if not self._lines[user]:
            del self._lines[user]
