"""Shares: limit how much of a bounded resource one user may take within a window of time."""

from collections import OrderedDict
from typing import Final

_MOST_OWNERS: Final = 4096
"""Owners counted at the same time; the one that has been idle longest is forgotten."""


class Share:
    """Counts the units that each owner takes within a window of time, up to ``most``."""

    def __init__(self, most: int, window: float) -> None:
        self._most = most
        self._window = window
        self._taken: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def take(self, owner: str, now: float) -> bool:
        """Count one unit for ``owner``, and return whether it is within its share."""
        began, count = self._taken.get(owner, (now, 0))
        if now - began >= self._window:
            began, count = now, 0
        self._taken[owner] = began, min(count + 1, self._most)
        self._taken.move_to_end(owner)
        if len(self._taken) > _MOST_OWNERS:
            self._taken.popitem(last=False)
        return count < self._most
