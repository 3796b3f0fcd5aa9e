"""Clients that keep the uvm sensor from their address space: found all the same, or said to be unwatchable."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from mpsguard.guard.sensors import uvm_client
from mpsguard.guard.sensors.uvm_look import MAX_SPACES_OF_A_CLIENT, MAX_TRAPS
from mpsguard.guard.sensors.uvm_shares import Limits
from mpsguard.linux.descriptors import foreign_fd
from mpsguard.linux.descriptors.fd_closer import ForeignFdCloser
from tests.harness.waiting import until
from tests.hostile.stalled_files import StalledFiles
from tests.unit.guard.sensors.uvm_bench import OPEN_PLAIN, OPEN_SPACE, Bench, scenario
from tests.unit.guard.sensors.uvm_driver import FATAL_FAULT, StandInDriver


def opened(count: int, flags: str = "os.O_RDWR") -> str:
    return f"more = [os.open('/dev/full', {flags}) for _ in range({count})]"


SPACES = "os.O_RDWR | os.O_APPEND"


def test_what_is_behind_thousands_of_other_files_is_found() -> None:
    count = foreign_fd.MAX_LOOKED_AT + 50

    async def body(bench: Bench) -> None:
        process = bench.process(
            "import resource",
            f"resource.setrlimit(resource.RLIMIT_NOFILE, ({count + 100}, {count + 100}))",
            f"files = [os.open('/dev/null', 0) for _ in range({count})]",
            OPEN_SPACE,
        )
        bench.sensor.watch(process.handle)
        await until(lambda: bench.attached() == [process.key])
        bench.driver.live(FATAL_FAULT)[0].put(FATAL_FAULT, at=4)
        await until(lambda: bench.faults() == [(process.key, 4)])

    scenario(body)


MOUNTED = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_BIND, MS_PRIVATE_ALL = 0x20000, 0x1000, 0x44000
open({path!r}, "w").close()
failed = libc.unshare(CLONE_NEWNS) or libc.mount(None, b"/", None, MS_PRIVATE_ALL, None)
failed = failed or libc.mount(b"/dev/full", {path!r}.encode(), None, MS_BIND, None)
space = None if failed else os.open({path!r}, os.O_RDWR | os.O_APPEND)
"""


def test_the_device_under_another_name_is_found(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        process = bench.process(f"exec({MOUNTED.format(path=str(tmp_path / 'other'))!r})")
        process.say("print(space)")
        opened = process.hear()
        process.hear()
        if opened == "None\n":
            pytest.skip("this user may not mount")
        assert os.readlink(f"/proc/{process.popen.pid}/fd/{int(opened)}").endswith("/other")
        await bench.came(process.handle)
        assert bench.attached() == [process.key]

    scenario(body)


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="only root mounts, and FUSE is needed")
def test_the_device_is_found_below_a_root_of_the_process_own(tmp_path: Path) -> None:
    """Its root is a file system of another process, and the device a mount in that, under the name of a file there."""

    async def body(bench: Bench) -> None:
        with StalledFiles(tmp_path) as files:
            code = (
                MOUNTED.format(path=str(files.file))
                .replace("open(", "os.path.exists(", 1)
                .replace(', "w").close()', ")")
            )
            process = bench.process(f"exec({code!r})", f"os.chroot({str(tmp_path)!r})")
            await bench.came(process.handle)
            assert bench.attached() == [process.key]

    scenario(body)


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="only root mounts, and FUSE is needed")
def test_files_in_deep_directories_take_no_longer_than_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While something is mounted on which a look may wait, each path is looked for among the mount points."""
    deep = tmp_path.joinpath("deep", *"d" * 500)
    deep.mkdir(parents=True)
    (deep / "file").touch()
    (tmp_path / "mount").mkdir()
    monkeypatch.setattr(foreign_fd, "_MAX_COMPARED", 1_000_000)

    async def body(bench: Bench) -> None:
        with StalledFiles(tmp_path / "mount"):
            few, many = (
                bench.process(f"more = [os.open({str(deep / 'file')!r}, 0) for _ in range({count})]", OPEN_SPACE)
                for count in (2, 20)
            )
            assert await bench.unwatchable(few.handle) == ""
            assert "too deep" in await bench.unwatchable(many.handle)
            assert bench.attached() == [few.key]

    scenario(body)


def test_a_verdict_is_of_all_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_fd, "MAX_LOOKED_AT", 3)
    monkeypatch.setattr(uvm_client, "LOOKS", ())

    async def body(bench: Bench) -> None:
        process = bench.process("files = [os.open('/dev/null', 0) for _ in range(10)]", OPEN_SPACE)
        assert await bench.unwatchable(process.handle) == ""
        assert bench.attached() == [process.key]

    scenario(body)


def test_a_client_that_has_opened_nothing_yet_is_not_unwatchable() -> None:
    async def body(bench: Bench) -> None:
        empty, plain = bench.process(), bench.process(OPEN_PLAIN)
        for process in (empty, plain):
            assert await bench.unwatchable(process.handle) == ""
        assert bench.attached() == []
        assert bench.told == []

    scenario(body)


def test_decoys_make_a_client_unwatchable_until_they_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvm_client, "LATER", 0.05)
    monkeypatch.setattr(uvm_client, "LATEST", 0.05)

    async def body(bench: Bench) -> None:
        process = bench.process(f"more = [os.dup(1) for _ in range({foreign_fd.MAX_COPIES + 1})]", OPEN_PLAIN)
        process.does("for each in more: os.dup2(plain, each)", OPEN_SPACE)
        assert "more than 32 descriptors" in await bench.unwatchable(process.handle)
        assert bench.attached() == []
        process.does("for each in more: os.close(each)")
        await until(lambda: bench.attached() == [process.key])
        assert [each.unwatchable for each in bench.told] == [True, False]

    scenario(body)


def test_more_address_spaces_than_are_kept_make_a_client_unwatchable_for_good() -> None:
    async def body(bench: Bench) -> None:
        process = bench.process(opened(MAX_SPACES_OF_A_CLIENT, SPACES))
        assert await bench.unwatchable(process.handle) == ""
        assert bench.attached() == [process.key]
        process.does(OPEN_SPACE)
        why = await bench.unwatchable(process.handle)
        assert why == f"it has had more than {MAX_SPACES_OF_A_CLIENT} address spaces"
        assert len(bench.driver.live(FATAL_FAULT)) == MAX_SPACES_OF_A_CLIENT
        process.does("os.close(space)")
        assert await bench.unwatchable(process.handle) == why
        assert [each.reason for each in bench.told] == [why]

    scenario(body)


def test_more_other_files_than_are_kept_make_a_client_unwatchable() -> None:
    async def body(bench: Bench) -> None:
        process = bench.process(opened(MAX_SPACES_OF_A_CLIENT + 1), OPEN_SPACE)
        assert "other files" in await bench.unwatchable(process.handle)

    scenario(body)


def test_one_user_does_not_take_the_places_of_others() -> None:
    async def body(bench: Bench) -> None:
        greedy = [bench.process(opened(2, SPACES)) for _ in range(3)]
        for process in greedy[:2]:
            await bench.came(process.handle, 1000)
        assert bench.attached() == [process.key for process in greedy[:2]]
        why = await bench.unwatchable(greedy[2].handle, 1000)
        assert why == "4 address spaces of its user are watched already"
        other, roots = bench.process(OPEN_SPACE), bench.process(OPEN_SPACE)
        assert await bench.unwatchable(other.handle, 1001) == ""
        assert await bench.unwatchable(roots.handle, 0) == ""
        assert {other.key, roots.key} < set(bench.attached())

    scenario(body, limits=Limits(most=6, of_a_user=4, roots=1))


def test_the_heaviest_user_gives_way() -> None:
    async def body(bench: Bench) -> None:
        heavy = [bench.process(OPEN_SPACE) for _ in range(4)]
        for process in heavy:
            await bench.came(process.handle, 1000)
        late = bench.process(OPEN_SPACE)
        assert await bench.unwatchable(late.handle, 1001) == ""
        assert bench.attached() == [*(process.key for process in heavy[:3]), late.key]
        (told,) = bench.told
        assert (told.process, told.unwatchable) == (heavy[3].key, True)
        # Nor does it take the place back.
        assert "4 address spaces" in await bench.unwatchable(heavy[3].handle, 1000)
        assert late.key in bench.attached()

    scenario(body, limits=Limits(most=4, of_a_user=4, roots=0))


@pytest.fixture
def traps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Races that are always won: what is copied is another file by then, and closing it takes until the test is over.

    Tells how many were copied.
    """
    monkeypatch.setattr(uvm_client, "LOOKS", (0.0,) * 50)
    copied = 0

    def exchanged(pidfd: int, number: int) -> int:
        nonlocal copied
        copied += 1
        return os.open("/dev/zero", os.O_RDWR | os.O_CLOEXEC)

    monkeypatch.setattr(foreign_fd, "_copy", exchanged)
    held_up = threading.Event()
    closing = ForeignFdCloser.close
    monkeypatch.setattr(
        ForeignFdCloser,
        "close",
        lambda closer, uid, fds, closed: closing(closer, uid, fds, lambda: (held_up.wait(60.0), closed())[1]),
    )
    yield lambda: copied
    held_up.set()
    for thread in closers():
        thread.join(30.0)
        assert not thread.is_alive()


def closers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "close-foreign"]


def test_files_that_are_exchanged_under_the_look_cost_a_few_closes_and_no_thread_each(
    traps: Callable[[], int],
) -> None:
    each = uvm_client.MAX_EXCHANGES + 1
    clients = MAX_TRAPS // each

    async def body(bench: Bench) -> None:
        processes = [bench.process(OPEN_SPACE) for _ in range(clients)]
        for process in processes:
            bench.sensor.watch(process.handle, 1000)
        await until(lambda: len(bench.told) == clients)
        assert all("it exchanges" in told.reason for told in bench.told)
        assert traps() == clients * each
        for process in processes:
            assert "it exchanges" in await bench.unwatchable(process.handle, 1000)
        # Nor does another process of the same user get one more, or take another user's place.
        fifth, other = bench.process(OPEN_SPACE), bench.process(OPEN_PLAIN)
        assert "its user's clients exchange" in await bench.unwatchable(fifth.handle, 1000)
        assert traps() == clients * each
        await bench.unwatchable(other.handle, 1001)
        assert traps() > clients * each
        assert len(closers()) <= 2 + 2

    scenario_with_traps(body)


def scenario_with_traps(body: Callable[[Bench], Awaitable[None]]) -> None:
    """What is held up is closed after the test, so that no descriptors are counted."""

    async def main() -> None:
        bench = Bench(Limits(), StandInDriver(), Path("/nonexistent"))
        try:
            await until(lambda: bench.sensor._trying_since is None)
            await body(bench)
        finally:
            bench.close()

    asyncio.run(main())


def test_a_client_that_ends_while_it_is_asked_about_is_no_ones_delay() -> None:
    async def body(bench: Bench) -> None:
        process = bench.process(OPEN_SPACE)
        bench.sensor.watch(process.handle)
        asked = asyncio.create_task(bench.sensor.unwatchable(process.handle))
        await asyncio.sleep(0)
        bench.sensor.unwatch(process.key)
        assert await asked == ""
        assert await bench.sensor.unwatchable(process.handle) == ""
        assert bench.sensor.attachments() == []

    scenario(body)
