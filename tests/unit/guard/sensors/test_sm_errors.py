"""SM errors: dumps and real processes' memory maps, put together."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fault_injection.sim.core_dump import core_dump, sm_row, thread_row
from mpsguard.guard.evidence import Evidence, OwnDump, SmError
from mpsguard.guard.sensors.gpu_core import GpuCore, SmException
from mpsguard.guard.sensors.sm_errors import SmErrorSensor, observations
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import procfs
from mpsguard.linux.processes.reserved_ranges import ReservedRanges
from tests.harness.waiting import until

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


def test_a_client_with_the_place_reserved_holds_it_and_a_range_like_code_is_told_from_a_long_one() -> None:
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

    async def scenario() -> None:
        sensor = SmErrorSensor(seen.append)
        with reserving(2) as (culprit, innocent):
            place = next(place for place in culprit.places if place not in innocent.places)
            for each in (culprit, innocent):
                sensor.watch(each.key)
            sensor.sm_fault_seen()
            sensor.dumped(lambda: b"no dump", time.monotonic(), None)
            await until(lambda: ", 1 not readable" in sensor.state().detail)
            culprit.ends()
            sensor.unwatch(culprit.key)
            dump = core_dump(sms=[sm_row(7, 6, place + 64)])
            sensor.dumped(lambda: dump, time.monotonic(), None)
            await until(lambda: bool(seen))
            assert isinstance(seen[0].what, SmError)
            assert (seen[0].what.holders, seen[0].what.unread) == ((culprit.key,), ())
        sensor.close()
        sensor.close()
        sensor.dumped(lambda: dump, time.monotonic(), None)

    asyncio.run(scenario())
    assert len(seen) == 1


def test_without_a_line_in_the_log_the_dump_itself_makes_it_look_and_a_client_that_is_gone_is_named() -> None:
    seen: list[Evidence] = []

    async def scenario() -> None:
        sensor = SmErrorSensor(seen.append)
        with reserving(2) as (there, gone):
            for each in (there, gone):
                sensor.watch(each.key)
            gone.ends()
            dump = core_dump(sms=[sm_row(7, 6, there.places[0])], threads=[thread_row(6)])
            sensor.dumped(lambda: dump, time.monotonic(), there.key)
            await until(lambda: len(seen) == 2)
            assert isinstance(seen[0].what, SmError)
            assert seen[0].what.unread == (gone.key,)
            assert seen[1].what == OwnDump(raised=True, grids=0)
        sensor.close()

    asyncio.run(scenario())
