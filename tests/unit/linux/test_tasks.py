"""Tasks of one owner, and their end."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from mpsguard.linux.tasks import Owner, beside, end_tasks, finish


def test_all_are_over_also_one_that_takes_its_time_and_one_that_failed() -> None:
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            # A few turns of the loop, as giving something back may take.
            for _ in range(3):
                await asyncio.sleep(0)
            ended.append(name)

    async def fails() -> None:
        raise OSError("a fault of its own")

    async def main() -> None:
        tasks = [asyncio.create_task(each) for each in (work("first"), fails(), work("second"))]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await end_tasks(tasks)
        assert ended == ["first", "second"]
        assert all(task.done() for task in tasks)
        assert isinstance(tasks[1].exception(), OSError)
        await end_tasks(())

    asyncio.run(main())


def test_a_set_is_settled_when_those_that_came_meanwhile_are_over_too() -> None:
    async def main() -> None:
        tasks, ended = Owner(), list[str]()

        async def second() -> None:
            await asyncio.sleep(0)
            ended.append("second")

        async def first() -> None:
            await asyncio.sleep(0)
            tasks.spawn(second())
            ended.append("first")

        spawned = tasks.spawn(first())
        assert (len(tasks), spawned.done()) == (1, False)
        assert await tasks.settle()
        assert ended == ["first", "second"]
        assert len(tasks) == 0

    asyncio.run(main())


def test_work_is_finished_however_often_its_caller_is_cancelled() -> None:
    async def main() -> None:
        go_on = asyncio.Event()
        done: list[str] = []

        async def work() -> str:
            await go_on.wait()
            done.append("work")
            return "value"

        caller = asyncio.create_task(finish(work()))
        for _ in range(3):
            await asyncio.sleep(0)
            caller.cancel()
            await asyncio.sleep(0)
            assert not caller.done()
        go_on.set()
        await asyncio.wait({caller})
        assert caller.cancelled()
        assert done == ["work"]
        assert await finish(work()) == "value"

    asyncio.run(main())


def reported() -> list[str]:
    """Collect what is reported to the running loop's exception handler."""
    found: list[str] = []

    def on_defect(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        found.append(f"{context['message']}: {context['exception']}")

    asyncio.get_running_loop().set_exception_handler(on_defect)
    return found


def test_the_error_of_work_whose_caller_was_cancelled_is_reported() -> None:
    async def main() -> None:
        found, go_on = reported(), asyncio.Event()

        async def work() -> None:
            await go_on.wait()
            raise OSError("no room")

        caller = asyncio.create_task(finish(work()))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.wait({caller})
        assert caller.cancelled()
        assert [each.partition(": ")[2] for each in found] == ["no room"]

    asyncio.run(main())


def test_an_owner_hears_of_the_failure_of_a_task_that_is_not_awaited() -> None:
    async def main() -> None:
        found = reported()

        async def fails() -> None:
            raise OSError("a fault of its own")

        async with Owner() as owner:
            # Held here, so that the interpreter does not report it in the owner's place.
            task = owner.spawn(fails(), name="name")
            await asyncio.wait({task})
            await asyncio.sleep(0)
            assert found == ["task name: a fault of its own"]

    asyncio.run(main())


def test_an_owner_ends_its_tasks_also_those_that_come_meanwhile() -> None:
    async def main() -> None:
        ended: list[str] = []

        async def work(name: str, last: str | None) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                if last is not None:
                    owner.spawn(work(last, None))
                ended.append(name)

        async with Owner() as owner:
            owner.spawn(work("first", "second"))
            await asyncio.sleep(0)
        assert len(owner) == 0
        assert ended == ["first", "second"]

    asyncio.run(main())


def test_work_that_is_kept_goes_on_after_a_failure_with_longer_and_longer_pauses() -> None:
    async def main() -> None:
        loop, found, began = asyncio.get_running_loop(), reported(), list[float]()
        clock = [0.0]

        def at_once(_: float, callback: Callable[..., object], *arguments: Any) -> asyncio.Handle:
            clock[0] += _
            return loop.call_soon(callback, *arguments)

        async def work() -> None:
            began.append(clock[0])
            if len(began) < 9:
                raise OSError("no descriptor left")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "call_later", at_once)
            owner = Owner()
            owner.keep("a look", work)
            assert await owner.settle()
        assert found == ["a look: no descriptor left"] * 8
        assert [after - before for before, after in pairwise(began)] == [1, 2, 4, 8, 16, 32, 60, 60]

    asyncio.run(main())


def test_what_runs_beside_a_block_has_ended_at_its_end_however_it_is_left() -> None:
    async def main() -> None:
        ended: list[str] = []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                for _ in range(3):
                    await asyncio.sleep(0)
                ended.append("work")

        async def block() -> None:
            async with beside(work(), asyncio.sleep(0, "value")) as (_, value):
                assert await value == "value"
                await asyncio.Event().wait()

        caller = asyncio.create_task(block())
        for _ in range(5):
            await asyncio.sleep(0)
        # Twice: also while the work is being ended.
        caller.cancel()
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait({caller})
        assert caller.cancelled()
        assert ended == ["work"]

    asyncio.run(main())


def test_an_owner_whose_tasks_have_just_ended_ends_at_once() -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            go_on = asyncio.Event()
            owner = Owner()
            task = owner.spawn(go_on.wait())
            await asyncio.sleep(0)
            task.add_done_callback(lambda _: None)
            go_on.set()
            while not task.done():
                await asyncio.sleep(0)
            await owner.end()
            assert len(owner) == 0

    asyncio.run(main())
