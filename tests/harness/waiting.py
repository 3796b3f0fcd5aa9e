"""Waiting for what no descriptor tells of: it is looked at again and again, until a deadline."""

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

PATIENCE: Final = 90.0
"""Seconds any single wait of a test may take before it fails: on a busy machine a process can stand still for some, but
nothing takes near that long. A test that passes never waits for it."""
_AGAIN: Final = 0.005
_LATER: Final = 0.02
"""Seconds between two looks: at first, and where it has been waited for more than a second. To ask a guard takes it and
the test as long as the first of these, which other tests lack."""

T = TypeVar("T")


def wait_for(what: str, look: Callable[[], T | bool | None], deadline: float = PATIENCE) -> T:
    """Call ``look`` until it returns something true, and return that; TimeoutError after ``deadline`` seconds."""
    begun = time.monotonic()
    while not (seen := look()):
        waited = time.monotonic() - begun
        if waited > deadline:
            raise TimeoutError(f"{what}: not within {deadline:g} s")
        time.sleep(max(_AGAIN, min(waited / 50, _LATER)))
    return seen  # type: ignore[return-value]  # False and None are excluded by the loop


async def until(look: Callable[[], object], deadline: float = PATIENCE) -> None:
    """Call ``look`` in the event loop until it returns something true; TimeoutError after ``deadline`` seconds."""
    async with asyncio.timeout(deadline):
        while not look():
            await asyncio.sleep(_AGAIN)
