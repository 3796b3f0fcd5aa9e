"""The uvm sensor and clients that exchange their program: exec keeps the process and drops its address space."""

from __future__ import annotations

import pytest

from mpsguard.linux.process_events import Kind, ProcessEvents
from mpsguard.sensors import uvm
from tests.unit.sensors.uvm_bench import EXEC, OPEN_SPACE, Bench, scenario, until
from tests.unit.sensors.uvm_driver import FATAL_FAULT


def test_a_client_that_calls_exec_is_let_go_of_and_found_again() -> None:
    async def body(bench: Bench) -> None:
        process = bench.process(OPEN_SPACE)
        await bench.came(process.handle)
        old = bench.driver.live(FATAL_FAULT)
        process.does(EXEC, OPEN_SPACE)
        await bench.came(process.handle)
        await until(lambda: len(bench.driver.live()) == 2)
        (new,) = bench.driver.live(FATAL_FAULT)
        assert new not in old
        new.put(FATAL_FAULT, at=6)
        await until(lambda: bench.faults() == [(process.key, 6)])

    scenario(body)


def test_a_program_after_exec_that_uses_no_gpu_keeps_nothing() -> None:
    async def body(bench: Bench) -> None:
        process = bench.process(OPEN_SPACE)
        await bench.came(process.handle)
        process.does(EXEC)
        await bench.came(process.handle)
        await until(lambda: not bench.driver.live())
        assert bench.reason(process.key) == "it has not opened /dev/full"

    scenario(body)


def test_an_exec_between_handshakes_is_seen_where_the_kernel_tells_of_it() -> None:
    async def body(bench: Bench) -> None:
        await until(lambda: bench.sensor.state().present)
        if "exec is seen at the next handshake only" in bench.sensor.state().detail:
            pytest.skip("no process events here")
        process = bench.process(OPEN_SPACE)
        await bench.came(process.handle)
        old = bench.driver.live(FATAL_FAULT)
        process.does(EXEC)
        await until(lambda: not bench.attached())
        process.does(OPEN_SPACE)
        await until(lambda: bench.attached() == [process.key])
        await until(lambda: len(bench.driver.live()) == 2)
        assert bench.driver.live(FATAL_FAULT) != old

    scenario(body)


def test_without_process_events_it_says_when_an_exec_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Kind) -> ProcessEvents:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(uvm, "ProcessEvents", refused)

    async def body(bench: Bench) -> None:
        process = bench.process(OPEN_SPACE)
        await bench.came(process.handle)
        await until(lambda: bench.sensor.state().present)
        detail = bench.sensor.state().detail
        assert detail.endswith("an exec is seen at the next handshake only: [Errno 1] Operation not permitted")
        process.does(EXEC)
        assert bench.attached() == [process.key]
        await bench.came(process.handle)
        assert bench.attached() == []

    scenario(body)
