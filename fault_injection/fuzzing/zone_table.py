"""The zone table of a program under the preload, which the program can write what it likes into."""

import fcntl
import os
from contextlib import suppress
from random import Random
from typing import Final

import msgspec

from fault_injection.fuzzing.mutation import changed, index, number
from fault_injection.fuzzing.surface import BrokenPromiseError, Surface
from mpsguard.preload import second_claim, zone_table
from mpsguard.preload.second_claim import ClaimPhase, SecondClaim
from mpsguard.preload.zone_table import COUNTERS, COUNTERS_AT, HEADER, HEADER_BYTES, SLOT, TableError, ZoneRegion

_SLOTS: Final = (0, 1, 3, 16)
_FULL: Final = 8192
"""Slots of the largest table that is read."""
_BASE: Final = 0x7F00_0000_0000
_STEP: Final = 1 << 24
_ZONE: Final = 1 << 21
_FIELD: Final = (0xFFFF_FFFF, 0xFFFF_FFFF, *((1 << 64) - 1,) * 6, 0xFFFF_FFFF, 0x7FFF_FFFF)


def _table(slots: int) -> bytes:
    header = HEADER.pack(zone_table.MAGIC, zone_table.VERSION, HEADER_BYTES, SLOT.size, slots, 4711, len(COUNTERS))
    regions = (
        ZoneRegion(at + 1, 0, start, _ZONE, _ZONE, _ZONE, start + _ZONE, 100, True, True, False)
        for at in range(slots)
        for start in (_BASE + at * _STEP,)
    )
    head = header.ljust(COUNTERS_AT, b"\0").ljust(HEADER_BYTES, b"\1")
    return head + b"".join(zone_table.encode(region, 2) for region in regions)


_CLAIM: Final = second_claim.encode(SecondClaim(ClaimPhase.WAITING, "hot", "managed_memory"), 2)
_TABLES: Final = {slots: _table(slots) for slots in (*_SLOTS, _FULL)}


class Table(msgspec.Struct, frozen=True):
    """A table, its contents at a second read, and the address of an access."""

    contents: bytes
    later: bytes | None
    address: int
    as_file: bool


class ZoneTable(Surface[Table]):
    """The reader, from bytes and from memory files."""

    name = "zone table"
    share = 120

    def make(self, chance: Random) -> Table:
        """A table with some fields of some slots, or some bytes, changed."""
        large = chance.random() < 0.002
        contents = _TABLES[_FULL if large else _SLOTS[index(chance, len(_SLOTS))]]
        for _ in range(index(chance, 4)):
            if len(contents) > HEADER_BYTES:
                slot = HEADER_BYTES + SLOT.size * index(chance, (len(contents) - HEADER_BYTES) // SLOT.size)
                word = list(SLOT.unpack_from(contents, slot))
                field = index(chance, len(word))
                word[field] = number(chance) & _FIELD[field]
                contents = contents[:slot] + SLOT.pack(*word) + contents[slot + SLOT.size :]
        if chance.random() < 0.3:
            block = changed(chance, _CLAIM)[: len(_CLAIM)].ljust(len(_CLAIM), b"\0")
            contents = contents[: second_claim.AT] + block + contents[second_claim.AT + len(_CLAIM) :]
        if chance.random() < 0.5:
            head = 64 if chance.random() < 0.5 else len(contents)
            contents = changed(chance, contents[:head]) + contents[head:]
        later = changed(chance, contents) if chance.random() < 0.2 else None
        address = _BASE + index(chance, 17) * _STEP + index(chance, 4 * _ZONE)
        return Table(contents, later, address if chance.random() < 0.9 else number(chance), chance.random() < 0.2)

    def feed(self, case: Table) -> None:
        """Read it, and look the address up; what is found holds the address."""
        try:
            place = self._in_file(case) if case.as_file else None
            table = zone_table.decode(case.contents, case.later)
        except TableError:
            return
        for here in (place, table.locate(case.address)):
            if here is not None:
                if not here.region.start <= case.address < here.region.end:
                    raise BrokenPromiseError(f"{case.address:#x} is not in {here.region}")
                msgspec.json.decode(msgspec.json.encode((here.beyond, here.region)))
        self._claim(case.contents)
        if any(one.end > other.start for one, other in zip(table.regions, table.regions[1:], strict=False)):
            raise BrokenPromiseError("regions overlap")

    def _claim(self, contents: bytes) -> None:
        with suppress(TableError):
            claim = second_claim.decode(contents[second_claim.AT :][: second_claim.LAYOUT.size])
            if claim is not None and claim.reason not in {"", second_claim.OTHER, *second_claim.REASONS}:
                raise BrokenPromiseError(f"a program's own text: {claim.reason!r}")

    def _in_file(self, case: Table) -> zone_table.LocatedAddress | None:
        fd = os.memfd_create(zone_table.NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.write(fd, case.contents)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            if len(case.contents) < 1 << 16:
                zone_table.read(fd)
            return zone_table.locate(fd, case.address)
        finally:
            os.close(fd)
