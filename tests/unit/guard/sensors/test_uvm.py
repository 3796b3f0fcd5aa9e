"""The uvm sensor with real processes, descriptors and pidfds; only the driver is a stand-in (see uvm_driver)."""

from __future__ import annotations

import asyncio
import platform
import stat
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from mpsguard.guard.evidence import Lost, Source, Trust, UvmFault
from mpsguard.guard.sensors import uvm_client, uvm_space
from mpsguard.guard.sensors.uvm import UvmSensor
from mpsguard.guard.sensors.uvm_client import LOOKS
from mpsguard.linux.nvidia import uvm_tools
from tests.harness.waiting import until
from tests.unit.guard.sensors.uvm_bench import (
    DEVICE,
    INITIALIZE,
    OPEN_PLAIN,
    OPEN_SPACE,
    Bench,
    child_with_the_same_file,
    scenario,
)
from tests.unit.guard.sensors.uvm_driver import FATAL_FAULT, GPU_FAULT, StandInDriver


def test_a_fault_is_evidence_against_its_process_and_no_other() -> None:
    async def body(bench: Bench) -> None:
        one, two = bench.process(OPEN_PLAIN, OPEN_SPACE), bench.process(OPEN_SPACE, OPEN_PLAIN)
        await bench.came(one.handle)
        await bench.came(two.handle)
        assert bench.attached() == [one.key, two.key]
        _, of_two = bench.driver.live(FATAL_FAULT)
        before = time.monotonic()
        raw = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        after = time.monotonic()
        of_two.put(FATAL_FAULT, fault=1, access=2, at=0xDEAD0000, ns=raw)
        await until(lambda: bench.evidence)
        (evidence,) = bench.evidence
        assert evidence.what == UvmFault(0xDEAD0000, "write", "invalid PDE", fatal=True)
        assert (evidence.source, evidence.trust, evidence.process) == (Source.UVM, Trust.PROOF, two.key)
        assert evidence.happened_at is not None
        assert before - evidence.uncertainty <= evidence.happened_at <= after + evidence.uncertainty
        # It is the time between two looks at a clock, which are made behind the fault.
        assert 0 < evidence.uncertainty <= time.monotonic() - before
        assert before <= evidence.observed_at <= time.monotonic()
        of_two.put(FATAL_FAULT, at=1)
        await until(lambda: len(bench.evidence) == 2)
        assert bench.evidence[0].serial != bench.evidence[1].serial

    scenario(body)


def test_an_address_space_that_comes_after_the_handshake_is_found() -> None:
    async def body(bench: Bench) -> None:
        process = bench.process()
        await bench.came(process.handle)
        assert bench.reason(process.key) == "it has not opened /dev/full"
        process.does(OPEN_PLAIN)
        await until(lambda: "none of its files of /dev/full is an address space" in bench.reason(process.key))
        process.does(INITIALIZE)
        await until(lambda: bench.attached() == [process.key])
        assert bench.reason(process.key) == ""

    scenario(body)


def test_looking_goes_on_after_the_first_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(LOOKS) == pytest.approx(2.0)
    monkeypatch.setattr(uvm_client, "LOOKS", (0.01,))
    monkeypatch.setattr(uvm_client, "LATER", 0.05)
    monkeypatch.setattr(uvm_client, "LATEST", 0.05)

    async def body(bench: Bench) -> None:
        process = bench.process(OPEN_SPACE, OPEN_PLAIN)
        await bench.came(process.handle)
        (of_first,) = bench.driver.live(FATAL_FAULT)
        await until(lambda: bench.sensor._clients[process.key].looks > 5)
        process.does("late = os.open('/dev/full', os.O_RDWR | os.O_APPEND)")
        await until(lambda: len(bench.driver.live(FATAL_FAULT)) == 2)
        assert of_first in bench.driver.live(FATAL_FAULT)
        assert bench.attached() == [process.key]
        assert bench.told == []

    scenario(body)


def test_looks_at_many_clients_take_no_more_of_a_processor_than_looks_at_few() -> None:
    took = 0.0005

    def seconds(clients: int, took: float = took) -> float:
        found = [uvm_client.until_next_look(len(LOOKS) + 1, took, clients) for _ in range(1000)]
        assert max(found) > min(found)
        return sum(found) / len(found)

    # The mean of 1,000 that are spread evenly by a quarter is off by 0.5 %, and by 2.5 % one in a million times.
    assert seconds(1) == pytest.approx(uvm_client.LATER, rel=0.05)
    for clients in (20, 48, 60):
        assert clients * took / seconds(clients) == pytest.approx(1 / uvm_client.LATER_SHARE, rel=0.05)
    assert seconds(48, 10.0) == pytest.approx(uvm_client.LATEST, rel=0.05)


def test_a_second_handshake_attaches_nothing_twice() -> None:
    async def body(bench: Bench) -> None:
        process = bench.process(OPEN_SPACE, OPEN_PLAIN)
        for _ in range(3):
            await bench.came(process.handle)
        assert len(bench.driver.live()) == 2

    scenario(body)


def test_the_end_of_a_client_lets_go_of_it_at_once_after_a_last_look() -> None:
    async def body(bench: Bench) -> None:
        process = bench.process(OPEN_SPACE)
        await bench.came(process.handle)
        (queue,) = bench.driver.live(FATAL_FAULT)
        queue.put(FATAL_FAULT, at=5)
        process.ends()
        bench.sensor.unwatch(process.key)
        assert bench.faults() == [(process.key, 5)]
        await until(lambda: not bench.driver.live())
        assert bench.sensor.attachments() == []
        bench.sensor.unwatch(process.key)

    scenario(body)


def test_a_client_that_dies_before_it_is_found_is_looked_for_no_more() -> None:
    async def body(bench: Bench) -> None:
        process = bench.process()
        await bench.came(process.handle)
        process.ends()
        await until(lambda: "it ended before" in bench.reason(process.key))
        bench.sensor.unwatch(process.key)

    scenario(body)


@pytest.mark.parametrize("child_first", [False, True])
def test_an_inherited_address_space_is_its_openers(child_first: bool) -> None:
    async def body(bench: Bench) -> None:
        process = bench.process(OPEN_SPACE)
        with child_with_the_same_file(process) as child:
            handles = [child, process.handle] if child_first else [process.handle, child]
            for handle in handles:
                await bench.came(handle)
            assert bench.attached() == [process.key]
            assert f"is that of process {process.key.pid}" in bench.reason(child.key)
            (queue,) = bench.driver.live(FATAL_FAULT)
            queue.put(FATAL_FAULT, at=3)
            await until(lambda: bench.faults() == [(process.key, 3)])
            bench.sensor.unwatch(child.key)
            assert bench.attached() == [process.key]

    scenario(body)


def test_lost_fatal_faults_are_evidence_and_daily_ones_are_only_counted() -> None:
    async def body(bench: Bench) -> None:
        process = bench.process(OPEN_SPACE)
        await bench.came(process.handle)
        (fatal,), (other,) = bench.driver.live(FATAL_FAULT), bench.driver.live(GPU_FAULT)
        for number in range(70):
            fatal.put(FATAL_FAULT, at=number)
            other.put(GPU_FAULT, at=1000 + number)
        fatal.put_raw(FATAL_FAULT, b"")
        await until(lambda: len(bench.evidence) == 63 + 63 + 1)
        (lost,) = [one for one in bench.evidence if isinstance(one.what, Lost)]
        assert (lost.what, lost.process, lost.happened_at) == (Lost(8), process.key, None)
        detail = bench.sensor.state().detail
        counted = "attached to 1 of 1 clients; 8 fatal faults lost, 7 others not read, 0 entries of unknown kind"
        assert detail.startswith(counted)

    scenario(body)


def test_a_flood_of_daily_faults_causes_no_wakeups_and_hides_no_fatal_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvm_space, "PAUSE", 0.2)

    async def body(bench: Bench) -> None:
        process = bench.process(OPEN_SPACE)
        await bench.came(process.handle)
        (fatal,), (other,) = bench.driver.live(FATAL_FAULT), bench.driver.live(GPU_FAULT)
        began = time.monotonic()
        for turn in range(100):
            for number in range(100):
                other.put(GPU_FAULT, at=number)
            if turn == 50:
                fatal.put(FATAL_FAULT, at=0xF)
            await asyncio.sleep(0.001)
        pauses = 1 + int((time.monotonic() - began) / 0.2)
        read = [address for _, address in bench.faults()]
        assert read.count(0xF) - 1 <= pauses
        assert (process.key, 0xF) in bench.faults()
        assert len(read) <= 63 * (pauses + 1) + 1
        await until(lambda: other.pending() == 0)

    scenario(body)


def test_nothing_is_read_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    drains = 0
    drain = uvm_tools.Tracker.drain

    def counted(tracker: uvm_tools.Tracker) -> object:
        nonlocal drains
        drains += 1
        return drain(tracker)

    monkeypatch.setattr(uvm_tools.Tracker, "drain", counted)

    async def body(bench: Bench) -> None:
        for _ in range(3):
            await bench.came(bench.process(OPEN_SPACE).handle)
        assert drains == 6
        await asyncio.sleep(0.3)
        assert drains == 6
        for queue in (bench.driver.live(FATAL_FAULT) * 4)[:10]:
            before = len(bench.evidence)
            queue.put(FATAL_FAULT)
            await until(partial(lambda before: len(bench.evidence) == before + 1, before))
        assert len(bench.evidence) == 10
        assert drains == 16

    scenario(body)


def test_a_queue_the_driver_gives_up_is_left_and_said() -> None:
    async def body(bench: Bench) -> None:
        process = bench.process(OPEN_SPACE)
        await bench.came(process.handle)
        bench.driver.live(FATAL_FAULT)[0].fail()
        await until(lambda: not bench.attached())
        assert bench.reason(process.key) == "the driver gave its event queue up"
        assert [one.what for one in bench.evidence] == [Lost(-1)]
        await until(lambda: not bench.driver.live())

    scenario(body)


def test_a_refusal_of_the_driver_is_the_reason() -> None:
    async def body(bench: Bench) -> None:
        bench.driver.refuse_with = 0x51
        process = bench.process(OPEN_SPACE)
        await bench.came(process.handle)
        assert "answers 0x51" in bench.reason(process.key)
        (told,) = bench.told
        assert (told.process, told.unwatchable, told.attached) == (process.key, True, False)

    scenario(body)


def test_without_the_device_the_sensor_is_absent_and_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        sensor = UvmSensor(lambda _: None, device=tmp_path / "nvidia-uvm")
        assert (sensor.name, sensor.state().present) == ("uvm", False)
        await until(lambda: "/dev/nvidia-uvm-tools" in sensor.state().detail)
        assert not sensor.state().present
        sensor.close()
        driver = StandInDriver()
        there = UvmSensor(lambda _: None, driver=driver)
        await until(lambda: there.state().present)
        there.close()
        driver.reap()

    if Path("/dev/nvidia-uvm-tools").exists():
        pytest.skip("the driver is here")
    asyncio.run(main())


def test_a_file_that_only_has_the_name_is_not_touched(tmp_path: Path) -> None:
    """A file of the client's own file system may block a process that closes a copy of it."""

    async def body(bench: Bench) -> None:
        (tmp_path / "full").touch()
        process = bench.process(
            f"trap = os.open({str(tmp_path / 'full')!r}, os.O_RDWR)", "zero = os.open('/dev/zero', 2)"
        )
        await bench.came(process.handle)
        assert bench.reason(process.key) == "it has not opened /dev/full"
        assert all(queue.file < 0 for queue in bench.driver.queues)

    assert stat.S_ISCHR(DEVICE.stat().st_mode)
    scenario(body)


def test_a_kernel_that_cannot_compare_files_makes_it_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "vax")

    async def body(bench: Bench) -> None:
        process = bench.process(OPEN_SPACE)
        await bench.came(process.handle)
        assert "kcmp" in bench.reason(process.key)
        await until(lambda: "kcmp" in bench.sensor.state().detail)
        assert not bench.sensor.state().present

    scenario(body)


def test_a_long_teardown_in_the_kernel_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    teardown = threading.Event()
    close = uvm_space.WatchedSpace.close

    def slow(space: uvm_space.WatchedSpace) -> None:
        teardown.wait(10)
        close(space)

    monkeypatch.setattr(uvm_space.WatchedSpace, "close", slow)

    async def body(bench: Bench) -> None:
        one, two = bench.process(OPEN_SPACE), bench.process(OPEN_SPACE)
        await bench.came(one.handle)
        bench.sensor.unwatch(one.key)
        await bench.came(two.handle)
        bench.driver.live(FATAL_FAULT)[-1].put(FATAL_FAULT, at=9)
        await until(lambda: bench.faults() == [(two.key, 9)])
        assert len(bench.driver.live()) == 4
        teardown.set()
        await until(lambda: len(bench.driver.live()) == 2)

    scenario(body)
