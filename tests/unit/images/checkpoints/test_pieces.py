"""Numbering of pieces, and the layout of the table that writer and copier share."""

import os

import pytest

from mpsguard.images.checkpoints.announcements import Announcements
from mpsguard.images.checkpoints.piece_table import DIGEST, MOST_PIECES, PieceTable, PieceTableError, table_size
from mpsguard.images.checkpoints.pieces import PIECE, RegionSpan, runs, span_of, spans, touched
from mpsguard.images.checkpoints.spare import SpareSlots, copies


def test_pieces_are_numbered_through() -> None:
    numbered = spans([("a", PIECE), ("b", 2 * PIECE + 1), ("c", 1)])
    assert [(span.first, span.end) for span in numbered] == [(0, 1), (1, 4), (4, 5)]
    assert numbered[1].bounds(3) == (2 * PIECE, 1)
    assert [span_of(numbered, number).name for number in range(5)] == ["a", "b", "b", "b", "c"]
    with pytest.raises(IndexError):
        span_of(numbered, 5)


@pytest.mark.parametrize(
    ("offset", "size", "expected"),
    [(0, 0, []), (0, 1, [0]), (PIECE - 1, 2, [0, 1]), (PIECE, PIECE, [1]), (0, 3 * PIECE, [0, 1, 2])],
)
def test_the_pieces_that_a_write_touches(offset: int, size: int, expected: list[int]) -> None:
    assert list(touched(offset, size, 3 * PIECE)) == expected
    assert list(RegionSpan("r", 3 * PIECE, 7).numbers(offset, size)) == [7 + number for number in expected]


@pytest.mark.parametrize(("offset", "size"), [(-1, 1), (0, -1), (3 * PIECE, 1), (0, 3 * PIECE + 1)])
def test_a_write_outside_of_the_region_is_refused(offset: int, size: int) -> None:
    with pytest.raises(ValueError, match="not within"):
        touched(offset, size, 3 * PIECE)


def test_runs() -> None:
    assert list(runs([1, 2, 3, 5, 6, 9], 2)) == [range(1, 3), range(3, 4), range(5, 7), range(9, 10)]
    assert list(runs([], 2)) == []


def test_what_one_side_writes_the_other_one_sees() -> None:
    table, fd = PieceTable.create(3, 7)
    table.digests[DIGEST : 2 * DIGEST] = b"d" * DIGEST
    theirs = PieceTable.open(fd, 3, 7)
    assert theirs.all_digests() == [bytes(DIGEST), b"d" * DIGEST, bytes(DIGEST)]
    table.want([2])
    table.set_aside(range(1), range(5, 6))
    theirs.set_copied((1,))
    assert (theirs.wanted(), theirs.slot(0), theirs.slot(1)) == (b"\0\0\1", 5, None)
    assert table.open_pieces(range(3)) == [2]
    for each in (table, theirs):
        each.close()
    os.close(fd)


def test_another_table_is_refused() -> None:
    table, fd = PieceTable.create(3, 7)
    table.close()
    for pieces, serial in ((3, 8), (4, 7), (1000, 7)):
        with pytest.raises(PieceTableError):
            PieceTable.open(fd, pieces, serial)
    os.close(fd)
    foreign = os.memfd_create("foreign")
    os.ftruncate(foreign, table_size(3))
    with pytest.raises(PieceTableError):
        PieceTable.open(foreign, 3, 7)
    os.close(foreign)
    for pieces in (0, MOST_PIECES + 1):
        with pytest.raises(PieceTableError):
            PieceTable.create(pieces, 1)


def test_slots_are_given_again_when_their_piece_was_copied() -> None:
    slots = SpareSlots(3)
    copied: set[int] = set()
    assert slots.take([10, 11], copied.__contains__) == [(10, 0), (11, 1)]
    assert slots.take([12, 13], copied.__contains__) == [(12, 2)]
    copied.add(11)
    assert slots.take([13], copied.__contains__) == [(13, 1)]
    slots.empty()
    assert [slot for _, slot in slots.take([1, 2, 3], copied.__contains__)] == [0, 1, 2]


def test_neighbours_are_copied_in_one_go() -> None:
    given = [(1, 4), (2, 5), (3, 6), (5, 7), (6, 1)]
    assert copies(given, 2) == [
        (range(1, 3), range(4, 6)),
        (range(3, 4), range(6, 7)),
        (range(5, 6), range(7, 8)),
        (range(6, 7), range(1, 2)),
    ]


def test_what_was_announced_since_the_last_cut() -> None:
    numbered = spans([("a", 3 * PIECE), ("b", PIECE)])
    announcements = Announcements()
    announcements.announce("a", range(1))
    assert announcements.cut(numbered) == b"\1\1\1\1"
    announcements.announce("a", range(1, 2))
    announcements.announce("unknown", range(5))
    assert announcements.cut(numbered) == b"\0\1\0\0"
    announcements.forget("b")
    assert announcements.cut(numbered) == b"\0\0\0\1"
    announcements.reset()
    assert announcements.cut(numbered) == b"\1\1\1\1"
