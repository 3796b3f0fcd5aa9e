"""Answers that are no older than the question, shared by all callers that ask at the same time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from mpsguard.linux.tasks import Owner

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Runs ``look`` so that every caller gets a result begun after its call, and no two looks run at once.

    A thousand callers cost at most two looks: the one under way, which is too old for them, and one for them all.
    """

    def __init__(self, look: Callable[[], Awaitable[T]]) -> None:
        self._look = look
        self._tasks = Owner()
        self._running: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        """The result of a look that begins after this call."""
        if self._next is None:
            self._next = self._tasks.spawn(self._after(self._running))
        # A caller that gives up must not take the answer away from the others.
        return await asyncio.shield(self._next)

    async def close(self) -> None:
        """Cancel what runs."""
        await self._tasks.end()

    async def _after(self, previous: asyncio.Task[T] | None) -> T:
        if previous is not None:
            await asyncio.wait({previous})
        self._running, self._next = self._next, None
        return await self._look()
