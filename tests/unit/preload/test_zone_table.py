"""Reading a zone table: what a program says of itself is believed as far as it can be true."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.preload import zone_table
from mpsguard.preload.zone_table import Part, TableError

MIB = 1 << 20
LIVE, FRONT, BACK, SLAB = 1, 2, 4, 8
HERE = 0x7F0000000000


def slot(sequence: int = 2, flags: int = LIVE | FRONT | BACK, start: int = HERE, **other: int) -> bytes:
    front, memory, back = other.get("front", 16 * MIB), other.get("memory", 4 * MIB), other.get("back", 64 * MIB)
    user, size = other.get("user", start + front + MIB), other.get("size", 3 * MIB)
    number, device = other.get("number", 1), other.get("device", 0)
    return struct.pack("<IIQQQQQQIi", sequence, flags, start, front, memory, back, user, size, number, device)


def table(*slots: bytes, counters: tuple[int, ...] = (1, 2, 3), **header: int) -> bytes:
    words = (
        header.get("version", 1),
        header.get("header", 4096),
        header.get("slot", 64),
        header.get("slots", len(slots)),
        header.get("pid", 77),
        header.get("counters", len(counters)),
    )
    head = struct.pack("<8s6I", b"MPSGZON1", *words).ljust(64, b"\0") + struct.pack(f"<{len(counters)}Q", *counters)
    return head.ljust(4096, b"\0") + b"".join(slots)


def memfd(contents: bytes, seals: int) -> int:
    fd = os.memfd_create(zone_table.NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, contents)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@pytest.mark.parametrize(
    ("address", "part", "armed", "offset", "beyond"),
    [
        (HERE, Part.FRONT, True, -17 * MIB, -17 * MIB),
        (HERE + 16 * MIB - 1, Part.FRONT, True, -MIB - 1, -MIB - 1),
        (HERE + 16 * MIB, Part.MEMORY, False, -MIB, -MIB),
        (HERE + 17 * MIB, Part.MEMORY, False, 0, 0),
        (HERE + 20 * MIB - 1, Part.MEMORY, False, 3 * MIB - 1, 0),
        (HERE + 20 * MIB, Part.BACK, True, 3 * MIB, 1),
        (HERE + 84 * MIB - 1, Part.BACK, True, 67 * MIB - 1, 64 * MIB),
    ],
)
def test_an_address_is_placed(address: int, part: Part, armed: bool, offset: int, beyond: int) -> None:
    place = zone_table.decode(table(slot())).locate(address)
    assert place is not None
    assert (place.part, place.armed, place.offset, place.beyond) == (part, armed, offset, beyond)


def test_an_address_outside_is_not() -> None:
    found = zone_table.decode(table(slot(), slot(start=HERE + (1 << 30), flags=LIVE | SLAB)))
    assert [region.slab for region in found.regions] == [False, True]
    for address in (0, HERE - 1, HERE + 84 * MIB, 1 << 64):
        assert found.locate(address) is None


@pytest.mark.parametrize(
    "wrong",
    [
        slot(sequence=3),
        slot(size=0),
        slot(device=-1),
        slot(user=HERE),
        slot(size=4 * MIB),
        slot(start=(1 << 57) - MIB),
        slot(memory=(1 << 64) - 1),
    ],
)
def test_a_slot_that_cannot_be_true_is_left_out(wrong: bytes) -> None:
    found = zone_table.decode(table(wrong, slot(start=HERE + (1 << 40), number=2)))
    assert ([region.number for region in found.regions], found.unreadable) == ([2], 1)


def test_regions_that_overlap_are_left_out() -> None:
    found = zone_table.decode(table(slot(), slot(start=HERE + 16 * MIB, number=2)))
    assert ([region.number for region in found.regions], found.unreadable) == ([1], 1)


def test_a_slot_that_changes_meanwhile_is_left_out() -> None:
    found = zone_table.decode(table(slot()), table(slot(number=9)))
    assert (found.regions, found.unreadable) == ((), 1)


def test_what_was_counted_is_read() -> None:
    assert zone_table.decode(table()).counters == {"placed": 1, "placed_small": 2, "freed": 3}


@pytest.mark.parametrize(
    "contents",
    [
        b"",
        b"\0" * 4096,
        table(version=2),
        table(header=64),
        table(slot=32),
        table(slot(), slots=2),
        table(slots=1 << 31),
        table(counters=(1,) * 3, slots=0)[:4095],
        struct.pack("<8s6I", b"MPSGZON1", 1, 4096, 64, 0, 1, 100000).ljust(4096, b"\0"),
    ],
)
def test_no_table_is_refused(contents: bytes) -> None:
    with pytest.raises(TableError):
        zone_table.decode(contents)


@given(st.binary(max_size=64 * 40), st.integers(0, 40), st.integers(0, 1 << 64))
def test_no_slots_are_too_wrong(slots: bytes, count: int, address: int) -> None:
    contents = table(slots, slots=count)
    try:
        found = zone_table.decode(contents)
    except TableError:
        assert len(slots) < count * 64
        return
    ends = [(region.start, region.end) for region in found.regions]
    assert ends == sorted(ends)
    place = found.locate(address)
    if place is not None:
        assert place.region.start <= address < place.region.end
        assert place.region.user + place.offset == address


@given(st.binary(max_size=5000))
def test_no_contents_are_too_wrong(contents: bytes) -> None:
    for text in (contents, zone_table.MAGIC + contents, table()[:24] + contents):
        try:
            zone_table.decode(text)
        except TableError:
            continue


def test_only_a_sealed_memory_file_is_read(tmp_path: Path) -> None:
    sealed = memfd(table(slot()), fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    growing = memfd(table(slot()), fcntl.F_SEAL_SHRINK)
    read_end, write_end = os.pipe()
    with (tmp_path / "table").open("wb") as file:
        file.write(table(slot()))
    plain = os.open(tmp_path / "table", os.O_RDONLY)
    try:
        assert len(zone_table.read(sealed).regions) == 1
        for fd in (growing, read_end, plain):
            with pytest.raises(TableError):
                zone_table.read(fd)
    finally:
        for fd in (sealed, growing, read_end, write_end, plain):
            os.close(fd)


@given(st.integers(HERE - MIB, HERE + 90 * MIB), st.sampled_from([2, 3]))
def test_one_address_is_looked_up_as_in_the_whole_table(address: int, sequence: int) -> None:
    contents = table(slot(sequence), slot(start=HERE + (1 << 30), number=2))
    fd = memfd(contents, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    try:
        assert zone_table.locate(fd, address) == zone_table.decode(contents).locate(address)
    finally:
        os.close(fd)


def test_a_table_that_lies_places_nothing_and_one_of_too_many_slots_is_refused() -> None:
    sealed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    twice, many = memfd(table(slot(), slot(number=2)), sealed), memfd(table(*([slot()] * 8193)), sealed)
    try:
        assert zone_table.locate(twice, HERE + 17 * MIB) is None
        with pytest.raises(TableError):
            zone_table.locate(many, HERE)
    finally:
        os.close(twice)
        os.close(many)
