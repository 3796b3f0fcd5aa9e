"""The uvm sensor with a driver that keeps its callers waiting: the event loop never is one of them.

No clock says so: only the loop opens the gate at which the driver waits. If the loop itself waited there, the gate
would stay shut.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from mpsguard.guard.sensors import uvm, uvm_client
from mpsguard.linux.side_threads import SideThreads
from tests.harness.waiting import until, wait_for
from tests.unit.guard.sensors.uvm_bench import OPEN_PLAIN, OPEN_SPACE, Bench, child_with_the_same_file, scenario
from tests.unit.guard.sensors.uvm_driver import FATAL_FAULT, StandInDriver

ENABLE_EVENTS = 58
ABANDONED = 20.0


class GatedDriver(StandInDriver):
    """Holds callers that enable a queue's events, in the order of their coming, until `pass_on` lets them by."""

    def __init__(self) -> None:
        super().__init__()
        self._gates: list[threading.Event] = []
        self._armed = False
        self.waiting = 0
        self.abandoned = False

    def call(self, fd: int, request: int, parameters: bytearray) -> None:
        if request == ENABLE_EVENTS and self._armed:
            gate = threading.Event()
            self._gates.append(gate)
            self.waiting += 1
            self.abandoned |= not gate.wait(ABANDONED)
            self.waiting -= 1
        super().call(fd, request, parameters)

    def pass_on(self) -> None:
        self._armed = False
        for gate in self._gates:
            gate.set()

    @contextmanager
    def closed(self) -> Iterator[None]:
        self._armed = True
        try:
            yield
        finally:
            self.pass_on()
        assert not self.abandoned


def _wait(gate: threading.Event) -> None:
    gate.wait(ABANDONED)


def gated(bench: Bench) -> GatedDriver:
    assert isinstance(bench.driver, GatedDriver)
    return bench.driver


def test_one_client_that_the_driver_holds_up_holds_up_no_other() -> None:
    async def body(bench: Bench) -> None:
        driver = gated(bench)
        slow = bench.process(OPEN_SPACE)
        with driver.closed():
            bench.sensor.watch(slow.handle)
            await until(lambda: driver.waiting)
            driver._armed = False
            other = bench.process(OPEN_SPACE)
            await bench.came(other.handle)
            assert bench.attached() == [other.key]
            driver.live(FATAL_FAULT)[-1].put(FATAL_FAULT, at=7)
            await until(lambda: bench.faults() == [(other.key, 7)])
        await until(lambda: bench.attached() == [slow.key, other.key])

    scenario(body, driver=GatedDriver)


def test_when_every_thread_is_held_up_the_loop_goes_on_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(bench: Bench) -> None:
        driver = gated(bench)
        processes = [bench.process(OPEN_SPACE) for _ in range(uvm._LOOKERS + 2)]
        monkeypatch.setattr(uvm_client, "SLOW", 0.0)
        with driver.closed():
            for process in processes:
                bench.sensor.watch(process.handle)
            await until(lambda: driver.waiting == uvm._LOOKERS)
            assert bench.attached() == []
            assert all("held up a look" in bench.reason(process.key) for process in processes)
            assert f"{len(processes)} looks held up" in bench.sensor.state().detail
            bench.sensor.unwatch(processes[-1].key)
        await until(lambda: len(bench.attached()) == len(processes) - 1)

    scenario(body, driver=GatedDriver)


def test_a_user_with_delayed_looks_delays_no_other_user() -> None:
    async def body(bench: Bench) -> None:
        driver = gated(bench)
        processes = [bench.process(OPEN_SPACE) for _ in range(uvm._LOOKERS + 2)]
        with driver.closed():
            for process in processes:
                bench.sensor.watch(process.handle, 1000)
            await until(lambda: driver.waiting == uvm._LOOKERS_OF_A_USER)
            driver._armed = False
            other = bench.process(OPEN_SPACE)
            await bench.came(other.handle, 1001)
            assert bench.attached() == [other.key]
            assert driver.waiting == uvm._LOOKERS_OF_A_USER
        await until(lambda: len(bench.attached()) == len(processes) + 1)

    scenario(body, driver=GatedDriver)


def test_a_client_that_ends_while_it_is_attached_to_is_heard_and_let_go_of() -> None:
    async def body(bench: Bench) -> None:
        driver = gated(bench)
        process = bench.process(OPEN_SPACE)
        with driver.closed():
            bench.sensor.watch(process.handle)
            await until(lambda: driver.waiting)
            bench.sensor.unwatch(process.key)
            driver.queues[-1].put(FATAL_FAULT, at=11)
        await until(lambda: bench.faults() == [(process.key, 11)])
        await until(lambda: not driver.live())
        assert bench.sensor.attachments() == []

    scenario(body, driver=GatedDriver)


def test_a_client_that_comes_again_while_it_is_looked_at_is_looked_at_again() -> None:
    async def body(bench: Bench) -> None:
        driver = gated(bench)
        process = bench.process(OPEN_SPACE)
        with driver.closed():
            bench.sensor.watch(process.handle)
            await until(lambda: driver.waiting)
            process.does("space2 = os.open('/dev/full', os.O_RDWR | os.O_APPEND)")
            bench.sensor.watch(process.handle)
        await until(lambda: len(driver.live(FATAL_FAULT)) == 2)

    scenario(body, driver=GatedDriver)


@pytest.mark.parametrize("child_first", [False, True])
def test_two_looks_at_one_address_space_at_once_attach_once(child_first: bool) -> None:
    async def body(bench: Bench) -> None:
        driver = gated(bench)
        process = bench.process(OPEN_PLAIN, OPEN_SPACE)
        with child_with_the_same_file(process) as child:
            handles = [child, process.handle] if child_first else [process.handle, child]
            with driver.closed():
                for number, handle in enumerate(handles, start=1):
                    bench.sensor.watch(handle)
                    await until(lambda number=number: driver.waiting == number)  # type: ignore[misc]
            await until(lambda: not any(bench.looking(handle.key) for handle in handles))
            assert bench.attached() == [process.key]
            assert f"is that of process {process.key.pid}" in bench.reason(child.key)
            await until(lambda: len(driver.live()) == 2)
            (queue,) = driver.live(FATAL_FAULT)
            queue.put(FATAL_FAULT, at=3)
            await until(lambda: bench.faults() == [(process.key, 3)])

    scenario(body, driver=GatedDriver)


def test_closing_does_not_wait_for_a_driver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvm, "CLOSE_WITHIN", 0.05)

    async def body(bench: Bench) -> None:
        driver = gated(bench)
        process = bench.process(OPEN_SPACE)
        with driver.closed():
            bench.sensor.watch(process.handle)
            await until(lambda: driver.waiting)
            bench.sensor.close()
            assert driver.waiting == 1
        # Whatever it was held up with is given back all the same.
        await until(lambda: not driver.live() and not driver.waiting)

    scenario(body, driver=GatedDriver)


def test_a_device_that_hangs_is_absent_and_is_no_ones_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvm_client, "SLOW", 0.0)
    gate = threading.Event()
    released = []

    class Hanging(StandInDriver):
        def open(self) -> int:
            released.append(gate.wait(ABANDONED))
            return super().open()

    async def body(bench: Bench) -> None:
        state = bench.sensor.state()
        assert not state.present
        assert "has not answered" in state.detail
        gate.set()
        await until(lambda: bench.sensor.state().present)
        assert all(released)

    scenario(body, driver=Hanging, tried=False)


def test_side_threads_do_every_job_and_no_fault_of_one_stops_them(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_value))
    threads = SideThreads("tried", 2)
    done: list[int] = []

    def fail() -> None:
        raise ValueError("of the test")

    for number in range(20):
        threads.run(lambda number=number: done.append(number))  # type: ignore[misc]
        threads.run(fail)
    assert threads.close(10.0)
    assert threads.close(0.0)
    assert sorted(done) == list(range(20))
    late = threading.Event()
    threads.run(late.set)
    assert late.wait(10.0)
    assert [str(error) for error in told] == ["of the test"] * 20


def test_side_threads_do_short_jobs_one_by_one() -> None:
    threads = SideThreads("tried", 8, alone_for=60.0)
    at_once, most = 0, 0
    lock = threading.Lock()
    given = threading.Event()

    def job() -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        # Lets another thread come, if one may.
        given.wait(0.005)
        with lock:
            at_once -= 1

    for _ in range(24):
        threads.run(job)
    assert threads.close(60.0)
    assert most == 1


def test_side_threads_are_started_when_none_is_idle() -> None:
    name = "tried-few"
    threads = SideThreads(name, 64)

    def started() -> int:
        return sum(each.name == name for each in threading.enumerate())

    for _ in range(20):
        done = threading.Event()
        threads.run(done.set)
        assert done.wait(10.0)
        # It is idle when it waits for the next job, a moment behind the last one.
        wait_for("the thread to be idle", lambda: threads._idle == 1)
    assert started() == 1
    gate, last = threading.Event(), threading.Event()
    for _ in range(63):
        threads.run(partial(_wait, gate))
    threads.run(last.set)
    assert last.wait(10.0)
    assert started() == 64
    gate.set()
    assert threads.close(10.0)
    assert started() == 0


def test_side_threads_do_a_job_beside_one_that_is_held_up() -> None:
    threads = SideThreads("tried", 2, alone_for=0.01)
    gate, done = threading.Event(), threading.Event()
    threads.run(partial(_wait, gate))
    threads.run(done.set)
    assert done.wait(ABANDONED / 2), "it waited for the one that is held up"
    gate.set()
    assert threads.close(10.0)
