"""GPU core dumps: files that any user may put where the guard looks for them."""

import os
import struct
from random import Random
from typing import Final

from fault_injection.fuzzing import stored
from fault_injection.fuzzing.mutation import changed, index, number
from fault_injection.fuzzing.surface import Surface
from fault_injection.sim.core_dump import core_dump, sm_row, thread_row
from mpsguard.guard.sensors.gpu_core import DumpFile, NotACoreError, parse
from mpsguard.guard.sensors.sm_errors import observations
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes.reserved_ranges import ReservedRanges

_PC: Final = 0x7F48A37A3840
_WRITER: Final = ProcessKey(101, 1010)
_MAPS: Final = {_WRITER: ReservedRanges(((0x7F48A3600000, 0x7F48A3800000),))}
_DUMPS: Final = tuple(
    core_dump(
        sms=[sm_row(at, 6 * (at % 2), _PC if at % 3 else None) for at in range(sms)],
        threads=[thread_row(6 * (at % 2)) for at in range(threads)],
        grids=sms,
        extended=extended,
    )
    for sms, threads in ((0, 0), (3, 2), (132, 1))
    for extended in (False, True)
)
_HEADER_FIELDS: Final = ((16, "H"), (18, "H"), (40, "Q"), (58, "H"), (60, "H"))
"""Offset and form of type, machine, e_shoff, e_shentsize and e_shnum."""
_SECTION_FIELDS: Final = ((4, "I"), (24, "Q"), (32, "Q"), (56, "Q"))
"""Of type, offset, size and row width."""
_SECTION_BYTES: Final = 64


class CoreDump(Surface[bytes]):
    """The parser, on files, and what is made of what they say."""

    name = "GPU core dump"
    share = 120

    def __init__(self) -> None:
        self._file = os.memfd_create("core", os.MFD_CLOEXEC)

    def make(self, chance: Random) -> bytes:
        """A dump with some fields of its headers, or some bytes, changed."""
        dump = bytearray(_DUMPS[index(chance, len(_DUMPS))])
        (start,), (count,) = struct.unpack_from("<Q", dump, 40), struct.unpack_from("<H", dump, 60)
        for _ in range(index(chance, 4)):
            if chance.random() < 0.4:
                at, form = _HEADER_FIELDS[index(chance, len(_HEADER_FIELDS))]
            else:
                at, form = _SECTION_FIELDS[index(chance, len(_SECTION_FIELDS))]
                at += start + _SECTION_BYTES * index(chance, count or 1)
            struct.pack_into(f"<{form}", dump, at, number(chance) & ((1 << 8 * struct.calcsize(form)) - 1))
        data = bytes(dump)
        return changed(chance, data, _DUMPS) if chance.random() < 0.4 else data

    def feed(self, case: bytes) -> None:
        """Read it from a file, as the sensor does."""
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, case, 0)
        try:
            core = parse(DumpFile(self._file))
        except (NotACoreError, OSError):
            return
        stored.check(observations(core, _MAPS, (), 1.0, _WRITER, verified=True), judge=False)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
