"""Which addresses a process has reserved without access: where CUDA puts what only the GPU may touch, code among it.

CUDA keeps one address space for host and GPU: it reserves every range that it maps on the GPU in the process too
(PROT_NONE, private, no file). The process' address space layout is random, so that an address of one process's GPU
code is hardly ever a reserved one of another process (seen on an H200, driver 580.159.04).
"""

import re
from bisect import bisect_right
from typing import Final

import msgspec

from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import procfs
from mpsguard.linux.processes.process_reader import ProcessReader

_MAX_MAPS: Final = 16 << 20
"""Bytes of /proc/PID/maps that are read: some 200,000 mappings, three times the kernel's default limit."""
_MAX_STAT: Final = 4096
_RESERVED: Final = re.compile(rb"^([0-9a-f]{1,16})-([0-9a-f]{1,16}) ---p 00000000 00:00 0 *$", re.MULTILINE)
"""A line of no file. Names of files are their owners' words; the kernel escapes nothing but newlines in them."""


class ReservedRanges(msgspec.Struct, frozen=True):
    """One process at one moment: (first, past-the-end) pairs in ascending order."""

    ranges: tuple[tuple[int, int], ...]

    def around(self, address: int) -> tuple[int, int] | None:
        """The reserved range that an address lies in, or None."""
        index = bisect_right(self.ranges, address, key=lambda each: each[0]) - 1
        return self.ranges[index] if index >= 0 and address < self.ranges[index][1] else None


def parse_maps(text: bytes) -> ReservedRanges:
    """The reserved ranges in the text of /proc/PID/maps, which is in ascending order (proc_pid_maps(5))."""
    return ReservedRanges(tuple((int(first, 16), int(end, 16)) for first, end in _RESERVED.findall(text)))


def reserved_ranges(process: ProcessKey, reader: ProcessReader) -> ReservedRanges:
    """Read them now; ProcessLookupError if the process has ended, or does not let them be read in time."""
    text, stat = reader.read(process.pid, procfs.uid(process.pid)[0], {"maps": _MAX_MAPS, "stat": _MAX_STAT})
    # Read by number: it is this process's only if the number was still its own afterwards.
    if not text or not stat or procfs.stat_of(stat).start_ticks != process.start_ticks:
        raise ProcessLookupError(f"process {process.pid} has ended")
    return parse_maps(text)
