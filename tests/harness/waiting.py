"""Waiting for what no descriptor tells of: it is looked at again and again, until a deadline."""

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

_DEADLINE: Final = 30.0
"""Seconds any single wait may take before the test fails; nothing takes near that long."""
_AGAIN: Final = 0.005

T = TypeVar("T")


def wait_for(what: str, look: Callable[[], T | bool | None], deadline: float = _DEADLINE) -> T:
    """Call ``look`` until it returns something true, and return that; TimeoutError after ``deadline`` seconds."""
    due = time.monotonic() + deadline
    while not (seen := look()):
        if time.monotonic() > due:
            raise TimeoutError(f"{what}: not within {deadline:g} s")
        time.sleep(_AGAIN)
    return seen  # type: ignore[return-value]  # False and None are excluded by the loop


async def until(look: Callable[[], object], deadline: float = _DEADLINE) -> None:
    """Call ``look`` in the event loop until it returns something true; TimeoutError after ``deadline`` seconds."""
    async with asyncio.timeout(deadline):
        while not look():
            await asyncio.sleep(_AGAIN)
