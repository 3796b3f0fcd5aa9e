"""When the ``uvm`` sensor looks at a client again."""

import random
from typing import Final

LOOKS: Final = (0.01, 0.02, 0.05, 0.12, 0.3, 0.5, 1.0)
"""Seconds between the looks at a client after a handshake: eight in 2 s, for its address space, then for its GPUs."""

LATER: Final = 5.0
"""Seconds between the looks after those, at the shortest: a client may open its address space when it likes."""

LATER_SHARE: Final = 1000
"""Times as long as a look at each client takes, a client is left alone: all looks together take 0.1 % of a core."""

LATEST: Final = 60.0
"""At the longest: a client may also bring it about that looks at it take long."""

_SPREAD: Final = 0.25
"""By which part of that time a look comes sooner or later: clients that came together are not always looked at so."""


def until_next_look(looks: int, took: float, clients: int) -> float:
    """Return the seconds until the next look at one of so many ``clients``, after its ``looks``-th, which ``took`` so
    many seconds."""
    if looks <= len(LOOKS):
        return LOOKS[looks - 1]
    return max(LATER, min(LATEST, LATER_SHARE * took * clients)) * random.uniform(1 - _SPREAD, 1 + _SPREAD)  # noqa: S311  # nothing secret
