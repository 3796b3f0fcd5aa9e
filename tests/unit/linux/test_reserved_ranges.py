"""Reserved ranges, of a real process and of recorded lines."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import procfs
from mpsguard.linux.processes.process_reader import ProcessReader
from mpsguard.linux.processes.reserved_ranges import parse_maps, reserved_ranges

MAPS = b"""\
200000000-200600000 ---p 00000000 00:00 0 
200600000-202a00000 rw-s 00000000 00:05 91                               /dev/nvidia0
7f74c3600000-7f74c3800000 ---p 00000000 00:00 0 
7f74c3800000-7f74c3900000 rw-p 00000000 00:00 0 
7f74c3feb000-7f76c8000000 ---p 00000000 00:00 0
7f76cf000000-7f76cf001000 ---p 00001000 fe:00 77                         /usr/lib/x86_64-linux-gnu/libc.so.6
"""  # noqa: W291 - the kernel writes a space at the end of such lines
PROGRAM = """
import ctypes, mmap, sys
reserved = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0)
used = mmap.mmap(-1, 8 << 20)
for line in open('/proc/self/maps'):
    span, mode = line.split()[:2]
    first, end = (int(number, 16) for number in span.split('-'))
    if mode == '---p' and end - first >= 8 << 20:
        print(first, end, ctypes.addressof(ctypes.c_char.from_buffer(used)), flush=True)
        break
sys.stdin.read()
"""


def test_only_private_memory_without_access_and_without_a_file_counts() -> None:
    ranges = parse_maps(MAPS)
    assert len(ranges.ranges) == 3
    assert ranges.around(0x7F74C37A3840) == (0x7F74C3600000, 0x7F74C3800000)
    assert ranges.around(0x7F74C3800000) is None
    assert ranges.around(0x7F74C3FEB000) == (0x7F74C3FEB000, 0x7F76C8000000)
    assert ranges.around(0x7F76CF000800) is None
    assert ranges.around(0) is None
    assert parse_maps(b"").ranges == ()


@pytest.fixture
def reader() -> Iterator[ProcessReader]:
    reading = ProcessReader()
    yield reading
    reading.close()


def test_a_real_process_is_read_and_its_successor_is_not_taken_for_it(reader: ProcessReader) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first, end, used = (int(number) for number in process.stdout.readline().split())
        key = procfs.process_key(process.pid)
        ranges = reserved_ranges(key, reader)
        assert ranges.around(first) == (first, end)
        assert ranges.around(used) is None
        with pytest.raises(ProcessLookupError):
            reserved_ranges(ProcessKey(key.pid, key.start_ticks + 1), reader)
        process.kill()
        process.wait()
    with pytest.raises(ProcessLookupError):
        reserved_ranges(key, reader)


def test_a_zombie_has_no_memory(reader: ProcessReader) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        key = procfs.process_key(process.pid)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProcessLookupError):
            reserved_ranges(key, reader)


MAPS_A_FILE = """
import mmap, sys
with open(sys.argv[1], "wb+") as file:
    file.truncate(4096)
    mapped = mmap.mmap(file.fileno(), 4096)
    reserved = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0)
    sys.stdout.write("mapped\\n")
    sys.stdout.flush()
    sys.stdin.read()
"""


@pytest.mark.parametrize("line", ["zz-yy", "1000-2000"])
def test_the_name_of_a_mapped_file_is_no_line(reader: ProcessReader, tmp_path: Path, line: str) -> None:
    """The kernel escapes newlines in it, and no carriage returns."""
    name = tmp_path / f"a\r{line} ---p 00000000 00:00 0"
    with subprocess.Popen(
        [sys.executable, "-c", MAPS_A_FILE, str(name)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"mapped\n"
        ranges = reserved_ranges(procfs.process_key(process.pid), reader)
        assert ranges.ranges
        assert ranges.around(0x1000) is None
        process.kill()
