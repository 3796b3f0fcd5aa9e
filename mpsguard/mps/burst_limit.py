"""How often something may happen: a burst within a window, as systemd's StartLimitBurst and StartLimitIntervalSec."""

from collections import deque


class BurstLimit:
    """Counts occurrences; times are seconds of one monotonic clock."""

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
