"""Lifelines: for how long, which one is let go, and that nothing is left. Address spaces are memory files here."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.guard.evidence import ProcessEnded
from mpsguard.guard.model import Lifeline
from mpsguard.guard.remedies import held_lifelines as lifelines_module
from mpsguard.guard.remedies.held_lifelines import (
    IDLE_WINDOW,
    MOST,
    MOST_OF_A_USER,
    NAME,
    Hold,
    Lifelines,
    drained,
    held_by_name,
    hold_for,
    stored_name,
)
from mpsguard.linux.identity import ProcessKey
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import until
from tests.unit.guard.sensors.uvm_bench import OPEN_PLAIN, OPEN_SPACE, Bench, scenario


class MemorySpaces:
    """Stands where the sensor does: a client's address space is a memory file, a real descriptor."""

    def __init__(self) -> None:
        self.files: dict[ProcessKey, int] = {}

    def came(self, key: ProcessKey) -> None:
        self.files[key] = os.memfd_create("space")

    def hold(self, key: ProcessKey) -> tuple[int, ...]:
        return (self.files[key],) if key in self.files else ()

    def release(self, key: ProcessKey) -> None:
        os.close(self.files.pop(key))


class Gpus:
    """Stands where NVML does."""

    def __init__(self) -> None:
        self.asked: list[bool] = []
        self.idle: float | None = None

    def watch_idleness(self, wanted: bool) -> None:
        self.asked.append(wanted)

    def idle_seen_at(self) -> float | None:
        return self.idle


class Told:
    def __init__(self) -> None:
        self.events: list[tuple[str, Mapping[str, Any]]] = []

    def __call__(self, kind: str, data: Mapping[str, Any]) -> None:
        self.events.append((kind, data))

    def released(self) -> list[str]:
        return [data["why"] for kind, data in self.events if kind == "lifeline_released"]


@pytest.mark.parametrize(
    ("ended", "seconds"),
    [
        (ProcessEnded(0, None, False, None), 1.0),
        (ProcessEnded(3, None, False, None), 7.0),
        (ProcessEnded(None, signal.SIGKILL, True, None), 7.0),
        (ProcessEnded(None, None, False, None), 7.0),
    ],
)
def test_a_client_that_ended_in_order_is_held_for_the_exits_time_and_all_others_for_the_crashes(
    ended: ProcessEnded, seconds: float
) -> None:
    assert hold_for(ended, crash_hold=7.0, exit_hold=1.0) == Hold(seconds)
    assert hold_for(ended, crash_hold=7.0, exit_hold=1.0, beyond=True) == Hold(seconds, beyond=seconds == 7.0)


@given(ended_at=st.floats(0, 1e6), later=st.floats(0, 10))
def test_only_a_reading_that_looks_back_no_further_than_the_end_proves_that_nothing_runs(
    ended_at: float, later: float
) -> None:
    assert not drained(ended_at, None)
    seen = ended_at + later
    assert drained(ended_at, seen) == (seen - IDLE_WINDOW >= ended_at)


def test_it_is_let_go_when_its_time_is_over_and_when_the_gpus_are_idle_and_by_wish() -> None:
    async def body() -> None:
        spaces, gpus, told = MemorySpaces(), Gpus(), Told()
        lifelines = Lifelines(spaces, gpus, told)
        short, long, named = (ProcessKey(pid, 1) for pid in (1, 2, 3))
        for key in (short, long, named):
            spaces.came(key)
        assert lifelines.take(short, Hold(0.05))
        assert lifelines.take(long, Hold(3600.0))
        assert lifelines.take(named, Hold(3600.0))
        assert not lifelines.take(ProcessKey(4, 1), Hold(1.0))
        assert [held.pid for held in lifelines.held()] == [1, 2, 3]
        assert lifelines.release_pid(3, "an operator said so")
        assert not lifelines.release_pid(3, "again")
        async with asyncio.timeout(20):
            while len(told.released()) < 2:
                await asyncio.sleep(0.01)
            gpus.idle = lifelines.held()[0].since + IDLE_WINDOW
            while lifelines.held():
                await asyncio.sleep(0.01)
            await lifelines.drained()
        assert gpus.asked == [True, True, True, False]
        assert told.released() == ["an operator said so", "its time is over", "the GPUs are idle"]
        assert not spaces.files
        lifelines.close()

    before = open_descriptors()
    asyncio.run(body())
    assert opened_since(before) == []


def test_one_that_is_kept_beyond_its_time_is_reported_once_and_held_until_the_gpus_are_idle() -> None:
    async def body() -> None:
        spaces, gpus, told = MemorySpaces(), Gpus(), Told()
        lifelines = Lifelines(spaces, gpus, told)
        first, second = (ProcessKey(pid, 1) for pid in (1, 2))
        for key in (first, second):
            spaces.came(key)
        assert lifelines.take(first, Hold(0.01, beyond=True))
        async with asyncio.timeout(20):
            while not lifelines.held()[0].overdue:
                await asyncio.sleep(0.01)
            gpus.idle = lifelines.held()[0].since + IDLE_WINDOW
            while lifelines.held():
                await asyncio.sleep(0.01)
            gpus.idle = None
            assert lifelines.take(second, Hold(0.01, beyond=True))
            await lifelines.drained()
        assert [kind for kind, _ in told.events].count("lifeline_overdue") in (1, 2)
        assert told.released() == ["the GPUs are idle", "its time is over"]
        lifelines.close()

    asyncio.run(body())


def test_a_hundred_thousand_lives_leave_nothing_behind() -> None:
    async def body() -> None:
        spaces, told = MemorySpaces(), Told()
        lifelines = Lifelines(spaces, Gpus(), told)
        most = 0
        for number in range(100_000):
            key = ProcessKey(number % 50_000 + 1, number)
            spaces.came(key)
            assert lifelines.take(key, Hold(3600.0))
            if number % 3 == 0:
                lifelines.release(key, "its time is over")
            if number % 1000 == 0:
                told.events.clear()
                most = max(most, len(open_descriptors() - before))
        assert MOST - 1 <= len(lifelines.held()) <= MOST
        assert most <= MOST + 8
        for held in lifelines.held():
            lifelines.release_pid(held.pid, "the end")
        lifelines.close()
        assert not spaces.files

    before = open_descriptors()
    asyncio.run(body())
    assert opened_since(before) == []


def test_a_user_that_has_its_share_loses_its_own_oldest_and_no_other_user_does() -> None:
    async def body() -> None:
        spaces, told = MemorySpaces(), Told()
        lifelines = Lifelines(spaces, Gpus(), told)

        def take(pid: int, uid: int) -> None:
            spaces.came(ProcessKey(pid, 1))
            assert lifelines.take(ProcessKey(pid, 1), Hold(3600.0), uid)

        take(1, 1000)
        for pid in range(2, MOST_OF_A_USER + 3):
            take(pid, 1001)
        assert [held.pid for held in lifelines.held()] == [1, *range(3, MOST_OF_A_USER + 3)]
        # Many users fill it together: the one with the most gives way, and the one with one does not.
        for pid in range(1000, 1000 + MOST):
            take(pid, 2000 + pid % 40)
        assert len(lifelines.held()) == MOST
        assert lifelines.held()[0].pid == 1
        assert set(told.released()) == {"too many of its user are held", "too many are held"}
        for held in lifelines.held():
            lifelines.release_pid(held.pid, "the end")
        lifelines.close()

    asyncio.run(body())


def test_what_the_store_has_no_room_for_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setattr(lifelines_module, "MOST_STORED_OF_A_USER", 1)

    async def body() -> None:
        spaces, told = MemorySpaces(), Told()
        lifelines = Lifelines(spaces, Gpus(), told)
        for pid, uid in ((1, 1000), (2, 1000), (3, 1001)):
            spaces.came(ProcessKey(pid, 1))
            assert lifelines.take(ProcessKey(pid, 1), Hold(3600.0), uid)
        untold = [data["pid"] for kind, data in told.events if kind == "lifeline_not_stored"]
        assert untold == [2]
        for held in lifelines.held():
            lifelines.release_pid(held.pid, "the end")
        lifelines.close()

    asyncio.run(body())
    manager.close()


def test_the_service_manager_is_given_a_copy_and_told_to_drop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    key = ProcessKey(77, 1)

    async def body() -> None:
        spaces = MemorySpaces()
        lifelines = Lifelines(spaces, Gpus(), Told())
        spaces.came(key)
        lifelines.take(key, Hold(3600.0))
        message, files, _, _ = socket.recv_fds(manager, 4096, 4)
        [held] = lifelines.held()
        name = stored_name(held)
        assert set(message.decode().splitlines()) == {"FDSTORE=1", "FDPOLL=0", f"FDNAME={name}"}
        assert os.fstat(files[0]) == os.fstat(spaces.files[key])
        os.close(files[0])
        await lifelines.drained()
        lifelines.release(key, "its time is over")
        assert set(manager.recv(4096).decode().splitlines()) == {"FDSTOREREMOVE=1", f"FDNAME={name}"}
        lifelines.close()

    asyncio.run(body())
    manager.close()


@given(
    pid=st.integers(1, 1 << 22),
    start_ticks=st.integers(0, 1 << 62),
    since=st.floats(0, 1e9),
    seconds=st.floats(0, 86400),
    beyond=st.booleans(),
)
def test_the_name_in_the_store_tells_all_that_the_next_guard_needs(
    pid: int, start_ticks: int, since: float, seconds: float, beyond: bool
) -> None:
    held = Lifeline(pid, start_ticks, since, since + seconds, beyond)
    name = stored_name(held)
    # What sd_notify(3) allows in FDNAME.
    assert name.isascii()
    assert name.isprintable()
    assert ":" not in name
    assert len(name) <= 255
    told = held_by_name(name)
    assert told is not None
    assert (told.process, told.beyond) == (held.process, beyond)
    assert abs(told.since - held.since) <= 0.001
    assert abs(told.until - held.until) <= 0.001
    assert stored_name(told) == name


@pytest.mark.parametrize("name", [NAME, f"{NAME}78", f"{NAME}1-2-3", f"{NAME}1-2-3-4-5", f"{NAME}1-2-3-4-keep-keep"])
def test_another_versions_name_is_not_misread(name: str) -> None:
    assert held_by_name(name) is None


def test_the_next_guard_goes_on_with_what_the_store_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.setblocking(False)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    removed: list[str] = []

    def told_to_remove() -> list[str]:
        try:
            while True:
                what, name = manager.recv(4096).decode().splitlines()
                assert what == "FDSTOREREMOVE=1"
                removed.append(name.removeprefix("FDNAME="))
        except BlockingIOError:
            return removed

    async def body() -> None:
        gpus, told = Gpus(), Told()
        lifelines = Lifelines(MemorySpaces(), gpus, told)
        began = time.monotonic() - 5.0
        drains = Lifeline(1, 11, began, began + 3600.0)
        over = Lifeline(2, 12, began, began + 1.0)
        kept = Lifeline(3, 13, began, began + 1.0, beyond=True)
        names = [stored_name(drains), stored_name(drains), stored_name(over), stored_name(kept), f"{NAME}4"]
        files = [os.memfd_create("space") for _ in names]
        lifelines.adopt(zip(files, names, strict=True), 3600.0)
        assert [held.pid for held in lifelines.held()] == [1, 2, 3, 0]
        assert [kind for kind, _ in told.events] == ["lifeline_adopted"] * 4
        async with asyncio.timeout(20):
            while len(lifelines.held()) > 3 or not lifelines.held()[1].overdue:
                await asyncio.sleep(0.01)
            assert told_to_remove() == [names[2]]
            # The guard before had not seen them idle: a reading of this one's counts from the client's end.
            gpus.idle = began + IDLE_WINDOW + 0.01
            while len(lifelines.held()) > 1:
                await asyncio.sleep(0.01)
            assert lifelines.release_pid(0, "an operator said so")
            while any(os.path.exists(f"/proc/self/fd/{file}") for file in files):
                await asyncio.sleep(0.01)
        assert told.released() == ["its time is over", "the GPUs are idle", "the GPUs are idle", "an operator said so"]
        assert sorted(told_to_remove()) == sorted(set(names))
        again = os.memfd_create("space")
        lifelines.adopt([(again, stored_name(drains))], 3600.0)
        lifelines.close()
        async with asyncio.timeout(20):
            while os.path.exists(f"/proc/self/fd/{again}"):
                await asyncio.sleep(0.01)
        # The next guard's.
        assert sorted(told_to_remove()) == sorted(set(names))

    asyncio.run(body())
    manager.close()


def test_the_sensor_keeps_a_killed_clients_address_space_until_it_is_let_go() -> None:
    """A real process; the driver is a stand-in, its address space a descriptor of a device."""

    async def body(bench: Bench) -> None:
        process = bench.process(OPEN_PLAIN, OPEN_SPACE)
        await bench.came(process.handle)
        assert bench.attached() == [process.key]
        process.popen.kill()
        process.popen.wait()
        files = bench.sensor.hold(process.key)
        # The address space, and the file that keeps the process' memory map.
        assert [os.readlink(f"/proc/self/fd/{file}") for file in files] == ["/dev/full"] * 2
        assert bench.attached() == []
        assert not bench.sensor.hold(process.key)
        bench.sensor.release(process.key)
        await until(lambda: not any(os.path.exists(f"/proc/self/fd/{file}") for file in files))
        bench.sensor.release(process.key)

    scenario(body)
