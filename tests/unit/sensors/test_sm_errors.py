"""SM errors: dumps and real processes' memory maps, put together."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fault_injection.sim.core_dump import core_dump, sm_row, thread_row
from mpsguard.evidence import Evidence, OwnDump, SmError
from mpsguard.linux import procfs
from mpsguard.linux.reserved_ranges import ReservedRanges
from mpsguard.model import Client, ProcessKey
from mpsguard.sensors.core_directory import CoreDirectory
from mpsguard.sensors.gpu_core import GpuCore, SmException
from mpsguard.sensors.sm_errors import SmErrorSensor, observations

A, B, C = (ProcessKey(pid, pid * 10) for pid in (101, 102, 103))
PC = 0x7F48A37A3840
CODE = ReservedRanges(((0x7F48A3600000, 0x7F48A3800000),))
ACROSS = ReservedRanges(((0x7F4800001000, 0x7F4900000000),))
ELSEWHERE = ReservedRanges(((0x7F1000000000, 0x7F1000200000),))
CORE = GpuCore((SmException(0, 6, None), SmException(9, 6, PC)), grids=1, raised=True)
RESERVES = """
import mmap, os, sys
code = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0)
big = [line.split('-')[0] for line in open('/proc/self/maps') if ' ---p 00000000 00:00 0' in line]
print(*big, flush=True)
sys.stdin.read()
"""


class Reserving:
    """A real process that has reserved memory."""

    def __init__(self) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-S", "-c", RESERVES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.popen.stdout is not None
        self.places = [int(word, 16) for word in self.popen.stdout.readline().split()]
        self.key = procfs.process_key(self.popen.pid)

    def ends(self) -> None:
        self.popen.kill()
        self.popen.communicate()


@contextmanager
def reserving(count: int) -> Iterator[list[Reserving]]:
    processes = [Reserving() for _ in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            process.ends()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def test_who_has_the_place_reserved_holds_it_and_a_range_like_code_is_told_from_a_long_one() -> None:
    maps = {A: CODE, B: ACROSS, C: ELSEWHERE}
    (error, own) = observations(CORE, maps, (), 5.0, A)
    assert isinstance(error.what, SmError)
    assert (error.what.why, error.what.pc) == ("misaligned address", PC)
    assert (error.what.holders, error.what.exact) == ((A, B), (A,))
    assert (own.what, own.process) == (OwnDump(raised=True, grids=1), A)
    assert error.happened_at == own.happened_at == 5.0
    assert [each.what for each in observations(GpuCore((), 0, False), maps, (), 5.0, None)] == []


def test_real_processes_are_looked_at_when_the_fault_is_seen_and_not_only_when_the_dump_comes() -> None:
    seen: list[Evidence] = []

    async def story() -> None:
        sensor = SmErrorSensor(seen.append)
        with reserving(2) as (culprit, innocent):
            place = next(place for place in culprit.places if place not in innocent.places)
            for each in (culprit, innocent):
                sensor.client_came(each.key)
            sensor.sm_fault_seen()
            sensor.dumped(lambda: b"no dump", time.monotonic(), None)
            await until(lambda: ", 1 not readable" in sensor.state().detail)
            culprit.ends()
            sensor.client_ended(culprit.key)
            dump = core_dump(sms=[sm_row(7, 6, place + 64)])
            sensor.dumped(lambda: dump, time.monotonic(), None)
            await until(lambda: bool(seen))
            assert isinstance(seen[0].what, SmError)
            assert (seen[0].what.holders, seen[0].what.unread) == ((culprit.key,), ())
        sensor.close()
        sensor.close()
        sensor.dumped(lambda: dump, time.monotonic(), None)

    asyncio.run(story())
    assert len(seen) == 1


def test_without_a_line_in_the_log_the_dump_itself_makes_it_look_and_who_is_gone_is_named() -> None:
    seen: list[Evidence] = []

    async def story() -> None:
        sensor = SmErrorSensor(seen.append)
        with reserving(2) as (there, gone):
            for each in (there, gone):
                sensor.client_came(each.key)
            gone.ends()
            dump = core_dump(sms=[sm_row(7, 6, there.places[0])], threads=[thread_row(6)])
            sensor.dumped(lambda: dump, time.monotonic(), there.key)
            await until(lambda: len(seen) == 2)
            assert isinstance(seen[0].what, SmError)
            assert seen[0].what.unread == (gone.key,)
            assert seen[1].what == OwnDump(raised=True, grids=0)
        sensor.close()

    asyncio.run(story())


def _client(pid: int, uid: int) -> Client:
    return Client(
        ProcessKey(pid, 1), uid, uid, "", cgroup="", container=None, gpus=None, domain="d", lane="l", connected_at=0.0
    )


def test_a_file_is_a_clients_own_word_only_under_its_pid_and_from_its_user(tmp_path: Path) -> None:
    """What is refused is counted; what is read is given back: no descriptor is left."""
    dumps: list[tuple[bytes, ProcessKey | None]] = []
    path = tmp_path / "cores"

    async def story() -> None:
        before = len(os.listdir("/proc/self/fd"))
        cores = CoreDirectory(path, lambda read, _began, process: dumps.append((read(), process)))
        cores.client_came(_client(77, os.geteuid()))
        cores.client_came(_client(88, os.geteuid() + 1))
        outside = tmp_path / "outside"
        outside.write_bytes(b"secret")
        (path / "core.99").symlink_to(outside)
        os.mkfifo(path / "core.98")
        (path / "notes.txt").write_bytes(b"no dump")
        (path / "core.77").write_bytes(b"own")
        (path / "core.88").write_bytes(b"somebody else's")
        (path / "core.66").write_bytes(b"stranger")
        await until(lambda: len(dumps) == 3)
        cores.client_ended(_client(77, os.geteuid()))
        (path / "core.77").write_bytes(b"again")
        await until(lambda: len(dumps) == 4)
        assert "1 files refused" in cores.state().detail
        cores.close()
        cores.close()
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(story())
    own = ProcessKey(77, 1)
    assert dumps == [(b"own", own), (b"somebody else's", None), (b"stranger", None), (b"again", None)]
    assert path.stat().st_mode & 0o7777 == 0o1733


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a directory of another user")
def test_a_directory_of_somebody_else_or_behind_a_link_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)

    async def story() -> None:
        for path in (theirs, link):
            with pytest.raises(OSError, match=r"."):
                CoreDirectory(path, lambda *_: None)

    asyncio.run(story())
    assert theirs.stat().st_uid == 12345
