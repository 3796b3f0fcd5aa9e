"""Cuts an operation short at each of its awaits."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from mpsguard.linux.sockets.packet_stream import PacketStream
from mpsguard.linux.sockets.seqpacket import Packet

LONGEST: Final = 30.0
"""Seconds for one play of a scene; nothing takes near that long."""
MOST: Final = 500
"""Points of one operation; more mean that it does not end."""
PASSES: Final = 30
"""Passes of the loop in which an operation is cut: one that waits for another process takes any number."""

Operation = Coroutine[Any, Any, Any]


class Performance:
    """An operation in a scene, and what it raised."""

    def __init__(self, work: Operation) -> None:
        self.work = work
        self.error: Exception | None = None
        """None also if it was cancelled."""


Scene = Callable[[], AbstractAsyncContextManager[Performance]]
"""Makes what is there before, gives the operation, and checks what must hold afterwards."""


class Interrupted:
    """An operation that is cancelled before its await number ``at``; 0: never."""

    def __init__(self, work: Operation, at: int) -> None:
        self._work = work
        self._at = at
        self.awaits = 0
        """How many it has come to."""

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = partial(self._work.send, None)
        while True:
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value
            self.awaits += 1
            if self.awaits == self._at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                step = partial(self._work.send, (yield waits_for))
            except BaseException as error:
                step = partial(self._work.throw, error)


async def cut_at_await(work: Operation, at: int) -> bool:
    """Run an operation, cancelled before its await number ``at``; return False if it had not as many."""
    interrupted = Interrupted(work, at)

    async def run() -> None:
        await interrupted

    await _over(task := asyncio.create_task(run()))
    reached = interrupted.awaits >= at
    # A cancellation is not swallowed.
    assert task.cancelled() == reached
    return reached


async def cut_in_pass(work: Operation, at: int) -> bool:
    """Run an operation, cancelled in pass number ``at`` of the loop; return False if it took fewer."""
    task = asyncio.create_task(work)
    for _ in range(at):
        await asyncio.sleep(0)
    reached = task.cancel()
    await _over(task)
    return reached


CUTS: Final = (cut_at_await, cut_in_pass)


async def _over(task: asyncio.Task[Any]) -> None:
    async with asyncio.timeout(LONGEST):
        await asyncio.wait({task})
    error = None if task.cancelled() else task.exception()
    if error is not None:
        raise error


def sweep(scene: Scene) -> int:
    """Play a scene, with each cut at each point of its operation; return the number of points."""
    points = 0
    for cut in CUTS:
        at = 1
        # Twice: what takes several packets may take an await less.
        while (cut is not cut_in_pass or at <= PASSES) and any(asyncio.run(_play(scene, cut, at)) for _ in range(2)):
            at += 1
            assert at < MOST, "it does not end"
        points += at - 1
    return points


_RECEIVE: Final = PacketStream.receive


async def _receive_later(stream: PacketStream, limit: int, **options: Any) -> Packet:
    """Wait for a packet also if it is there: how soon another process answers decides nothing."""
    await stream.readable()
    return await _RECEIVE(stream, limit, **options)


async def _play(scene: Scene, cut: Callable[[Operation, int], Awaitable[bool]], at: int) -> bool:
    try:
        async with scene() as performance:
            with patch.object(PacketStream, "receive", _receive_later):
                reached = await cut(performance.work, at)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks are left: {left}"
    except BaseException as error:
        error.add_note(f"{cut.__name__}: {at}")
        raise
    return reached
