"""Answers no older than the question, shared by all callers that ask at the same time."""

import asyncio

from mpsguard.guard.lanes.single_flight import SingleFlight


def test_a_caller_that_asks_during_a_look_gets_the_next_one_and_all_share_it() -> None:
    async def scenario() -> None:
        gates = [asyncio.Event() for _ in range(3)]
        begun: list[int] = []
        first_began = asyncio.Event()

        async def look() -> int:
            number = len(begun)
            begun.append(number)
            first_began.set()
            await gates[number].wait()
            return number

        fresh = SingleFlight(look)
        first = asyncio.create_task(fresh())
        await first_began.wait()
        late = [asyncio.create_task(fresh()) for _ in range(100)]
        await asyncio.sleep(0)
        gates[0].set()
        gates[1].set()
        assert await first == 0
        assert set(await asyncio.gather(*late)) == {1}
        assert begun == [0, 1]
        gates[2].set()
        assert await fresh() == 2
        await fresh.close()

    asyncio.run(scenario())


def test_a_caller_that_gives_up_takes_the_answer_from_no_other() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def look() -> str:
            await gate.wait()
            return "seen"

        fresh = SingleFlight(look)
        impatient, patient = asyncio.create_task(fresh()), asyncio.create_task(fresh())
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait({impatient})
        gate.set()
        assert await patient == "seen"

    asyncio.run(scenario())
