"""asyncio tasks: those that belong to one owner, and their end."""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


async def end_tasks(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel ``tasks`` in their order and wait until each is over. What came of them is left to the caller."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    if ending:
        await asyncio.wait(ending)


class TaskSet:
    """Owns tasks that run beside their owner; each leaves the set when it is done."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        """Those that are not done; they may leave the set meanwhile."""
        return iter(list(self._tasks))

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Start a task, which belongs to the set."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.add(task)
        return task

    def add(self, task: asyncio.Task[Any]) -> None:
        """Take over a task that runs already."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Wait until none is left, those that are spawned meanwhile included."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
