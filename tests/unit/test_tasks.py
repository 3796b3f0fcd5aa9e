"""Tasks of one owner, and their end."""

import asyncio

from mpsguard.tasks import TaskSet, end_tasks, finish


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
        tasks, ended = TaskSet(), []

        async def second() -> None:
            await asyncio.sleep(0)
            ended.append("second")

        async def first() -> None:
            await asyncio.sleep(0)
            tasks.spawn(second())
            ended.append("first")

        spawned = tasks.spawn(first())
        assert (len(tasks), list(tasks)) == (1, [spawned])
        await tasks.settle()
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
