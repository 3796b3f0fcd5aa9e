"""asyncio tasks: each has an owner that ends it and hears of its failure; a transition that has begun is finished."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from mpsguard.linux.pacing import backoff

T = TypeVar("T")

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
"""Seconds before work that failed is begun again; doubled while it fails sooner than this after its start."""


async def end_tasks(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel ``tasks`` in order and wait until all are done. The caller handles their results."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await _wait_for(ending)


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` returns; if the caller is cancelled meanwhile, it is cancelled when the work is done.

    For the last steps of a transition, between which nothing may end it. They must be bounded: the caller cannot be
    stopped before they are over. If the work fails too, its error is reported as a defect, because a cancelled caller
    cannot raise it.
    """
    task = asyncio.create_task(work)
    try:
        await _wait_for([task])
    except asyncio.CancelledError:
        _report_failure(task)
        raise
    return task.result()


async def _wait_for(tasks: list[asyncio.Future[Any]] | list[asyncio.Task[T]]) -> None:
    """Wait until all are done. A cancellation meanwhile is raised afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while waiting := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(waiting)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


@asynccontextmanager
async def beside(*work: Coroutine[Any, Any, Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Run ``work`` beside a block that takes the results; what is not done at its end is cancelled, and has ended."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield tasks
    finally:
        await end_tasks(tasks)


def report_defect(where: str, error: Exception) -> None:
    """Pass an exception that nothing expects to the running loop's exception handler, which logs its traceback.

    Args:
        where: what raised it.
        error: the exception; its task or callback goes on.
    """
    asyncio.get_running_loop().call_exception_handler({"message": where, "exception": error})


def _report_failure(task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    if isinstance(error, Exception):
        report_defect(f"task {task.get_name()}", error)


class Owner:
    """Owns tasks that run beside it: it reports their failures, and none is left after `end`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.end()

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Start a task. What it raises is reported as a defect, and the task may be awaited too."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def keep(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task for work that is to go on: after a failure, which is reported, it is begun again."""
        self.spawn(_again_and_again(name, work), name=name)

    async def settle(self, within: float | None = None) -> bool:
        """Wait until no task is left, including those that are spawned meanwhile.

        Return False if some are left after ``within`` seconds.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self._tasks:
                    await asyncio.wait(self._tasks)
        return not self._tasks

    def cancel(self) -> None:
        """Cancel all tasks, where the owner cannot wait for their end."""
        for task in list(self._tasks):
            task.cancel()

    async def end(self) -> None:
        """Cancel all tasks, and wait until none is left, including those that are spawned meanwhile."""
        while self._tasks:
            ending = set(self._tasks)
            await end_tasks(ending)
            # Before their callbacks, which come in the loop's next pass.
            self._tasks -= ending

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        _report_failure(task)


async def _again_and_again(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run ``work`` until it returns, with pauses after failures."""
    loop = asyncio.get_running_loop()
    failures = 0
    while True:
        began = loop.time()
        try:
            return await work()
        except Exception as error:
            report_defect(name, error)
        failures = 0 if loop.time() - began > _LONGEST_PAUSE else failures + 1
        await asyncio.sleep(backoff(max(failures - 1, 0), _FIRST_PAUSE, _LONGEST_PAUSE))
