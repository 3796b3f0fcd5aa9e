"""The end of asyncio tasks."""

import asyncio
from collections.abc import Iterable
from typing import Any


async def end_tasks(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel ``tasks`` in their order and wait until each is over. What came of them is left to the caller."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    if ending:
        await asyncio.wait(ending)
