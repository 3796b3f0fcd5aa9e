"""Budget of users: an amount (a number, seconds, bytes) that each may use at once, and that comes again evenly.

A user is whatever hashable key tells users apart. Pure: times are arguments, seconds of one monotonic clock.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

U = TypeVar("U", bound=Hashable)

_MOST_USERS: Final = 4096
"""Users that are remembered; of more, the one that used its budget least lately has all of it again."""


class UserBudget(Generic[U]):
    """What each user has left. Over any time, a user takes what comes meanwhile and one whole budget at most."""

    def __init__(self, most: float, window: float) -> None:
        """``most``: what a user may use at once. ``window``: seconds in which as much comes again."""
        self._most = most
        self._window = window
        self._known: OrderedDict[U, tuple[float, float]] = OrderedDict()
        """What was left of each user's, and when; the user that was least lately here comes first."""

    def left(self, user: U, now: float) -> float:
        """Return what a user has left: below 0 if it used more than it had."""
        left, then = self._known.get(user, (self._most, now))
        return min(self._most, left + max(now - then, 0.0) * self._most / self._window)

    def wait(self, user: U, now: float) -> float:
        """Return the seconds until a user owes nothing; 0 if it does not."""
        return max(-self.left(user, now), 0.0) * self._window / self._most

    def spend(self, user: U, now: float, amount: float = 1) -> None:
        """Count what a user has used, also beyond what it had left."""
        self._known[user] = self.left(user, now) - amount, now
        self._known.move_to_end(user)
        if len(self._known) > _MOST_USERS:
            self._known.popitem(last=False)

    def take(self, user: U, now: float, amount: float = 1) -> bool:
        """Use ``amount`` if a user has as much left, and return whether it had."""
        if self.left(user, now) < amount:
            return False
        self.spend(user, now, amount)
        return True
