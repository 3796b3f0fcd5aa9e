"""Zones: a real process with a real table in a real memory file; only the driver's report is made up."""

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpsguard.guard.evidence import Evidence, Source, Trust, UvmFault, ZoneHit
from mpsguard.guard.sensors.zones import ZoneSensor
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.preload import zone_table
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import until
from tests.hostile.held_exec import held_exec
from tests.hostile.stalled_files import StalledFiles

START, FRONT, MEMORY, BACK = 0x7F0000000000, 16 << 20, 4 << 20, 64 << 20
USER = START + FRONT
LIVE, BACK_ARMED, FRONT_ARMED = 1, 4, 2
HEADER = "<8sIIIIII"
SLOT = "<IIQQQQQQIi"

TABLE = f"""
import fcntl, os, struct, sys
fd = os.memfd_create({zone_table.NAME!r}, os.MFD_ALLOW_SEALING)
flags = {LIVE | BACK_ARMED | FRONT_ARMED}
START = {START} + %d
slot = struct.pack({SLOT!r}, 2, flags, START, {FRONT}, {MEMORY}, {BACK}, START + {FRONT}, {MEMORY}, 7, 0)
header = struct.pack({HEADER!r}, {zone_table.MAGIC!r}, {zone_table.VERSION}, 4096, len(slot), 1, os.getpid(), 0)
os.write(fd, header.ljust(4096, b'\\0') + slot)
fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
"""
NEXT = 1 << 40
"""Between two tables' regions."""
WAIT = "print('ready', flush=True); sys.stdin.read()"


@contextmanager
def client(program: str) -> Iterator[ProcessHandle]:
    command = [sys.executable, "-S", "-c", f"import sys\n{program}\n{WAIT}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with ProcessHandle.open(process.pid) as handle:
            yield handle
        process.communicate()


def fault(handle: ProcessHandle, address: int) -> Evidence:
    what = UvmFault(address, "write", "invalid", fatal=False)
    return Evidence(Source.UVM, 5.0, what, happened_at=4.9, process=handle.key, trust=Trust.PROOF)


def test_an_access_in_a_zone_is_reported_with_its_place_once_and_one_in_ordinary_memory_is_not() -> None:
    seen: list[Evidence] = []

    async def scenario() -> None:
        before = open_descriptors()
        sensor = ZoneSensor(seen.append)
        with client(TABLE % 0) as handle:
            sensor.watch(handle, os.getuid())
            sensor.watch(handle, os.getuid())
            sensor.fault(fault(handle, USER + 8))
            sensor.fault(fault(handle, START - 4096))
            await until(lambda: not sensor._clients[handle.key].looking)
            sensor.fault(fault(handle, USER + MEMORY + 16))
            await until(lambda: seen)
            sensor.fault(fault(handle, USER + MEMORY + 32))
            await until(lambda: not sensor._clients[handle.key].looking)
            sensor.unwatch(handle.key)
            sensor.fault(fault(handle, USER + MEMORY + 64))
        sensor.close()
        sensor.close()
        assert opened_since(before) == []

    asyncio.run(scenario())
    (evidence,) = seen
    assert evidence.what == ZoneHit(USER + MEMORY + 16, "write", 7, "back zone", beyond=17, size=MEMORY)
    assert evidence.happened_at == 4.9


def test_each_table_of_a_client_is_looked_at() -> None:
    """The preload has one, and so has each space that a program makes itself; both count their regions from 1."""
    seen: list[Evidence] = []

    async def scenario() -> None:
        before = open_descriptors()
        sensor = ZoneSensor(seen.append)
        with client(TABLE % 0 + TABLE % NEXT) as handle:
            sensor.watch(handle, os.getuid())
            for address in (USER + MEMORY, NEXT + USER + MEMORY + 4):
                sensor.fault(fault(handle, address))
                await until(lambda: not sensor._clients[handle.key].looking)
        sensor.close()
        assert opened_since(before) == []

    asyncio.run(scenario())
    assert [each.what for each in seen] == [
        ZoneHit(USER + MEMORY, "write", 7, "back zone", beyond=1, size=MEMORY),
        ZoneHit(NEXT + USER + MEMORY + 4, "write", 7, "back zone", beyond=5, size=MEMORY),
    ]


def test_a_client_without_a_table_and_one_that_lies_about_its_file_cost_one_look() -> None:
    liar = f"import os\nfd = os.memfd_create({zone_table.NAME!r})\nos.write(fd, b'x' * 8192)"

    async def scenario() -> None:
        before = open_descriptors()
        sensor = ZoneSensor(lambda _: None)
        for program in ("", liar):
            with client(program) as handle:
                sensor.watch(handle, os.getuid())
                sensor.fault(fault(handle, USER + MEMORY + 16))
                await until(lambda: not sensor._clients[handle.key].looking)
                assert sensor._clients[handle.key].no_table_at > 0
                sensor.fault(fault(handle, USER + MEMORY + 16))
                assert not sensor._clients[handle.key].looking
                sensor.unwatch(handle.key)
        assert sensor.state().detail == "0 accesses in zones"
        sensor.close()
        assert opened_since(before) == []

    asyncio.run(scenario())


def test_a_fault_that_could_not_be_looked_at_for_want_of_a_descriptor_does_not_stop_the_next() -> None:
    seen: list[Evidence] = []

    async def scenario(handle: ProcessHandle) -> None:
        sensor = ZoneSensor(seen.append)
        sensor.watch(handle, os.getuid())
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            sensor.fault(fault(handle, USER + MEMORY))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        sensor.fault(fault(handle, USER + MEMORY))
        await until(lambda: seen)
        sensor.close()

    with client(TABLE % 0) as handle:
        asyncio.run(scenario(handle))
    assert isinstance(seen[0].what, ZoneHit)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no FUSE here")
def test_a_client_that_does_not_end_its_exec_keeps_no_other_users_zones_from_being_looked_at() -> None:
    seen: list[Evidence] = []

    async def scenario() -> None:
        before = open_descriptors()
        sensor = ZoneSensor(seen.append)
        with held_exec([60000] * 5) as pids:
            for pid in pids:
                with ProcessHandle.of_living(os.pidfd_open(pid), ProcessKey(pid, 1)) as handle:
                    sensor.watch(handle, 60000)
                    sensor.fault(fault(handle, USER + MEMORY))
            with client(TABLE % 0) as other:
                sensor.watch(other, 60001)
                sensor.fault(fault(other, USER + MEMORY))
                await until(lambda: seen)
        sensor.close()
        await until(lambda: not opened_since(before))

    asyncio.run(scenario())
    assert isinstance(seen[0].what, ZoneHit)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no FUSE here")
def test_a_file_of_the_clients_own_file_system_that_reads_like_a_table_is_not_closed_here(tmp_path: Path) -> None:
    """Its close(2) lasts as long as that file system likes, and a thread that waits there cannot be killed."""
    with StalledFiles(tmp_path) as mount:
        trap = f"import os\nfd = os.open({str(tmp_path / zone_table.LINK[1:])!r}, os.O_RDONLY)"
        root = os.open(tmp_path, os.O_PATH)
        with client(trap) as handle:
            # From here on the link does not show where the file system was.
            subprocess.run(["umount", "-l", str(tmp_path)], check=True)
            links = {os.readlink(f"/proc/{handle.key.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{handle.key.pid}/fd")}
            assert zone_table.LINK in links

            async def scenario() -> None:
                sensor = ZoneSensor(lambda _: None)
                sensor.watch(handle, os.getuid())
                sensor.fault(fault(handle, USER + MEMORY))
                await until(lambda: not sensor._clients[handle.key].looking)
                assert sensor._clients[handle.key].no_table_at > 0
                sensor.close()

            asyncio.run(scenario())
            # Requests are answered in order: this one comes after all that the look asked.
            os.stat("other", dir_fd=root)
            os.close(root)
            assert not mount.closing.acquire(blocking=False)
