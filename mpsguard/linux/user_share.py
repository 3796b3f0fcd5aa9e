"""Share of places: so many in all, so many of one user, and which user gives way when all are taken.

A user is whatever hashable key tells users apart: a uid, or what else shares are counted by.
"""

import enum
import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable
from typing import Generic, Self, TypeVar

U = TypeVar("U", bound=Hashable)


class Room(enum.Enum):
    """Whether one more place can be taken."""

    FREE = "free"
    OWN_SHARE = "own share"
    """The user holds its share."""
    NONE = "none"
    """All places are taken."""


class Place:
    """Some places of a share. They are given back once, however often and by whichever thread that is asked."""

    __slots__ = ("_give_back",)

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back = [give_back]

    def give_back(self) -> None:
        """Give the places back, unless that has been done."""
        try:
            give_back = self._give_back.pop()  # one call of C: two threads never get it both
        except IndexError:
            return
        give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()


class UserShare(Generic[U]):
    """Counts the places that users hold. From any thread.

    A user that is privileged is not held to a user's share, and some places may be reserved for it.
    """

    def __init__(
        self,
        most: int,
        of_a_user: int | None = None,
        *,
        privileged: Collection[U] = (),
        reserved: int = 0,
        returned: Callable[[], None] | None = None,
    ) -> None:
        """Create it, with all places free.

        Args:
            most: places of all users.
            of_a_user: of one user that is not privileged; None: ``most``.
            privileged: users that are.
            reserved: how many of ``most`` only privileged users may take.
            returned: called after each return of places, on the thread of the return.
        """
        self._lock = threading.Lock()
        self._held: Counter[U] = Counter()
        self._total = 0
        self._of_others = 0
        """Of the total, what users hold that are not privileged."""
        self._privileged = frozenset(privileged)
        self._returned = returned
        self.resize(most, of_a_user, reserved=reserved)

    def resize(self, most: int, of_a_user: int | None = None, *, reserved: int = 0) -> None:
        """Change the limits, as at the creation. What is held beyond lower ones stays."""
        self._most, self._reserved = most, reserved
        self._of_a_user = most if of_a_user is None else of_a_user

    def __len__(self) -> int:
        return self._total

    def held(self, user: U) -> int:
        """Return how many places a user holds."""
        return self._held.get(user, 0)

    def room(self, user: U) -> Room:
        """Return whether one more place of ``user`` is free."""
        with self._lock:
            return self._room(user, 1)

    def has_room(self, user: U) -> bool:
        """Return whether one more place of ``user`` is free."""
        return self.room(user) is Room.FREE

    def take(self, user: U, places: int = 1) -> Place | None:
        """Take places, or none of them: None if they are not free."""
        with self._lock:
            if self._room(user, places) is not Room.FREE:
                return None
            return self._place(user, places)

    def exceed(self, user: U, places: int = 1) -> Place:
        """Count places of a user, whether or not they are free: what exists already, or another gives way for."""
        with self._lock:
            return self._place(user, places)

    def heaviest(self, may: Callable[[U], bool] = lambda _: True) -> U | None:
        """Return the user that holds most of those for which ``may`` is true; None if there is none.

        A privileged user counts with what it holds beyond the reserved places only.
        """
        with self._lock:
            users = [user for user in self._held if self._may_give(user) and may(user)]
            return max(users, key=self._held.__getitem__, default=None)

    def heavier(self, user: U, may: Callable[[U], bool] = lambda _: True) -> U | None:
        """Return the user that gives way to ``user``: the heaviest, if it holds more than ``user`` will have then."""
        heaviest = self.heaviest(may)
        return heaviest if heaviest is not None and self.held(heaviest) > self.held(user) + 1 else None

    def _room(self, user: U, places: int) -> Room:
        privileged = user in self._privileged
        if not privileged and self._held[user] + places > self._of_a_user:
            return Room.OWN_SHARE
        if self._total + places > self._most or (
            not privileged and self._of_others + places > self._most - self._reserved
        ):
            return Room.NONE
        return Room.FREE

    def _place(self, user: U, places: int) -> Place:
        self._count(user, places)
        return Place(lambda: self._give_back(user, places))

    def _count(self, user: U, places: int) -> None:
        self._held[user] += places
        if not self._held[user]:
            del self._held[user]
        self._total += places
        if user not in self._privileged:
            self._of_others += places

    def _may_give(self, user: U) -> bool:
        return user not in self._privileged or self._held[user] > self._reserved

    def _give_back(self, user: U, places: int) -> None:
        with self._lock:
            self._count(user, -places)
        if self._returned is not None:
            self._returned()
