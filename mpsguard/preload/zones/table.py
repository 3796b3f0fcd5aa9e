"""Writes the zone table of this process: the memory file that the guard reads (mpsguard/preload/zone_table.h, .py)."""

import fcntl
import mmap
import os
import struct
from typing import Final

from mpsguard.preload import zone_table
from mpsguard.preload.zone_table import ZoneRegion

SLOTS: Final = 8192
_WORD: Final = struct.Struct("<I")
_COUNTER: Final = struct.Struct("<Q")


class TableWriter:
    """Owns the memory file until `close`. Callers must serialize their calls."""

    def __init__(self) -> None:
        bytes_in_all = zone_table.HEADER_BYTES + SLOTS * zone_table.SLOT.size
        file = os.memfd_create(zone_table.NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(file, bytes_in_all)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            # The mmap object keeps a copy of the descriptor, which the guard finds.
            self._memory = mmap.mmap(file, bytes_in_all)
        finally:
            os.close(file)
        self._free = list(reversed(range(SLOTS)))
        header = zone_table.HEADER.pack(
            zone_table.MAGIC,
            zone_table.VERSION,
            zone_table.HEADER_BYTES,
            zone_table.SLOT.size,
            SLOTS,
            os.getpid(),
            len(zone_table.COUNTERS),
        )
        self._memory[: len(header)] = header

    def add(self, region: ZoneRegion) -> int | None:
        """Add a region and return its slot; None (and a count of `unlisted`) if the table is full."""
        if not self._free:
            self.count("unlisted")
            return None
        slot = self._free.pop()
        self._write(slot, region)
        return slot

    def change(self, slot: int | None, region: ZoneRegion) -> None:
        """Replace an entry; does nothing for a region without a slot."""
        if slot is not None:
            self._write(slot, region)

    def remove(self, slot: int | None) -> None:
        """Remove an entry; does nothing for a region without a slot."""
        if slot is not None:
            self._write(slot, None)
            self._free.append(slot)

    def count(self, counter: str) -> None:
        """Increment a counter of `zone_table.COUNTERS`."""
        at = zone_table.COUNTERS_AT + _COUNTER.size * zone_table.COUNTERS.index(counter)
        (value,) = _COUNTER.unpack_from(self._memory, at)
        _COUNTER.pack_into(self._memory, at, value + 1)

    def close(self) -> None:
        """Close the file; safe to call twice. A copy of its descriptor still shows the last content."""
        self._memory.close()

    def _write(self, slot: int, region: ZoneRegion | None) -> None:
        # The number is odd while the slot is written. No barrier stands between the writes: a reader takes no slot
        # that differs between two readings.
        at = zone_table.HEADER_BYTES + slot * zone_table.SLOT.size
        (sequence,) = _WORD.unpack_from(self._memory, at)
        _WORD.pack_into(self._memory, at, sequence + 1 & 0xFFFFFFFF)
        content = zone_table.encode(region, 0) if region is not None else bytes(zone_table.SLOT.size)
        self._memory[at + _WORD.size : at + zone_table.SLOT.size] = content[_WORD.size :]
        _WORD.pack_into(self._memory, at, sequence + 2 & 0xFFFFFFFF)
