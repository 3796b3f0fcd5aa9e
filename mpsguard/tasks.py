"""asyncio tasks: sets of tasks with one owner, their cancellation, and reports of what failed in them."""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


async def end_tasks(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel ``tasks`` in order and wait until all are done. The caller handles their results."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    if ending:
        await asyncio.wait(ending)


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` returns; if the caller is cancelled meanwhile, it is cancelled when the work is done."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


def report_defect(where: str, error: Exception) -> None:
    """Pass an exception that nothing expects to the running loop's exception handler, which logs its traceback.

    Args:
        where: what raised it.
        error: the exception; its task or callback goes on.
    """
    asyncio.get_running_loop().call_exception_handler({"message": where, "exception": error})


class TaskSet:
    """Owns tasks that run beside their owner; each leaves the set when it is done."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        """Iterate over the running tasks, which may leave the set meanwhile."""
        return iter(list(self._tasks))

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Start a task in the set."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.add(task)
        return task

    def add(self, task: asyncio.Task[Any]) -> None:
        """Add a running task."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Wait until no task is left, including those that are spawned meanwhile."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
