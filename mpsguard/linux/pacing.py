"""How often something may happen: so often within a window, and less and less often what fails."""

from collections import deque
from typing import Final

_DOUBLINGS: Final = 32
"""After that many any wait is the longest one; what fails for days must not get to numbers that no float takes."""
_FIRST_RESTART: Final = 0.25
LONGEST_RESTART: Final = 30.0


class BurstLimit:
    """Counts occurrences within a window, as systemd's StartLimitBurst and StartLimitIntervalSec.

    Times are seconds of one monotonic clock.
    """

    def __init__(self, burst: int, window: float) -> None:
        self._window = window
        self._happened: deque[float] = deque(maxlen=burst)

    def wait(self, now: float) -> float:
        """Seconds until it may happen again; 0 if it may now."""
        if len(self._happened) < (self._happened.maxlen or 0):
            return 0.0
        return max(0.0, self._happened[0] + self._window - now)

    def happened(self, now: float) -> None:
        """Record one occurrence."""
        self._happened.append(now)


def backoff(failures: int, first: float, longest: float) -> float:
    """Seconds to wait after so many failures in a row: ``first`` after none, doubled with each, ``longest`` at most."""
    return min(first * 2.0 ** min(failures, _DOUBLINGS), longest)


def restart_delay(deaths: int) -> float:
    """Return the seconds to wait after so many consecutive deaths: none after the first, then doubling."""
    return 0.0 if deaths <= 1 else backoff(deaths - 2, _FIRST_RESTART, LONGEST_RESTART)
