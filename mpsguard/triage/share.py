"""Shares: how much of what is bounded one user may take in a stretch of time, so that none takes it all."""

from collections import OrderedDict
from typing import Final

_MOST_OWNERS: Final = 4096
"""Owners counted at the same time; the one that was idle longest is forgotten."""


class Share:
    """Counts what each owner takes within a window of time; not more than ``most``."""

    def __init__(self, most: int, window: float) -> None:
        self._most = most
        self._window = window
        self._taken: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def take(self, owner: str, now: float) -> bool:
        """Whether ``owner`` may have one more."""
        began, count = self._taken.get(owner, (now, 0))
        if now - began >= self._window:
            began, count = now, 0
        self._taken[owner] = began, min(count + 1, self._most)
        self._taken.move_to_end(owner)
        if len(self._taken) > _MOST_OWNERS:
            self._taken.popitem(last=False)
        return count < self._most
