"""The uvm sensor and clients that close their address space while they live, or lose it by exec: it is kept."""

from __future__ import annotations

from tests.harness.waiting import until
from tests.unit.guard.sensors.uvm_bench import EXEC, OPEN_PLAIN, OPEN_SPACE, Bench, scenario
from tests.unit.guard.sensors.uvm_driver import FATAL_FAULT


def test_an_address_space_that_exec_closes_is_kept_and_reported_until_the_end() -> None:
    async def body(bench: Bench) -> None:
        process = bench.process(OPEN_SPACE, OPEN_PLAIN)
        await bench.came(process.handle)
        (old,) = bench.driver.live(FATAL_FAULT)
        process.does(EXEC)
        await bench.came(process.handle)
        assert bench.driver.live(FATAL_FAULT) == [old]
        old.put(FATAL_FAULT, at=6)
        await until(lambda: bench.faults() == [(process.key, 6)])
        process.popen.kill()
        process.popen.wait()
        assert len(bench.sensor.hold(process.key)) == 2
        assert bench.driver.live(FATAL_FAULT) == [old]
        bench.sensor.release(process.key)
        await until(lambda: not bench.driver.live())

    scenario(body)


def test_a_client_cannot_have_its_address_space_dropped_while_it_lives() -> None:
    async def body(bench: Bench) -> None:
        process = bench.process(OPEN_SPACE, OPEN_PLAIN)
        await bench.came(process.handle)
        (old,) = bench.driver.live(FATAL_FAULT)
        process.does("os.close(space)", "os.close(plain)", OPEN_SPACE)
        await bench.came(process.handle)
        await until(lambda: len(bench.driver.live(FATAL_FAULT)) == 2)
        assert old in bench.driver.live(FATAL_FAULT)
        # Both spaces, and the other file, without which the driver takes them apart as the process ends.
        assert len(bench.sensor.hold(process.key)) == 3
        bench.sensor.release(process.key)

    scenario(body)
