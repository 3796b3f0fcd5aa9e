"""Times and ages as readers see them."""

import time


def clock(unix: float) -> str:
    """Return a time (UNIX seconds) as text, in UTC like the ids."""
    milliseconds = round(unix * 1000)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(milliseconds // 1000))}.{milliseconds % 1000:03d} UTC"


def age(since: float, now: float | None = None) -> str:
    """Return how long ago a UNIX time was, short: 42s, 7m, 3h, 12d; ``now`` is by default the time of the clock."""
    seconds = max(0, int((time.time() if now is None else now) - since))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
