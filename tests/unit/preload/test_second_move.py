"""Requests for moves and their answers, in memory in which the program may write anything."""

from __future__ import annotations

import fcntl
import os
import re
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.preload import build, second_move
from mpsguard.preload.second_claim import OTHER, REASONS
from mpsguard.preload.second_move import MoveAnswer, MoveState
from mpsguard.preload.zone_table import TableError

HEAD = struct.pack("<8s6I", b"MPSGZON1", 1, 4096, 64, 0, 77, 0)


@pytest.fixture
def table() -> Iterator[int]:
    fd = os.memfd_create("mpsguard-zones", os.MFD_ALLOW_SEALING)
    try:
        os.pwrite(fd, HEAD.ljust(4096, b"\0"), 0)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        yield fd
    finally:
        os.close(fd)


def test_what_was_not_asked_is_not_answered(table: int) -> None:
    assert second_move.read(table) == MoveState()


def test_a_request_is_one_word_of_eight_bytes(table: int) -> None:
    second_move.ask(table, 7, 12.5, shut_down=True)
    (word,) = struct.unpack("<Q", os.pread(table, 8, second_move.REQUEST_AT))
    assert word == 7 | 1250 << 32 | 1 << 48


def test_it_reads_what_was_answered(table: int) -> None:
    state = MoveState(7, MoveAnswer.FAILED, 0.25, 0.0125, "managed_memory")
    os.pwrite(table, second_move.encode(state), second_move.ANSWER_AT)
    assert second_move.read(table) == state


def test_a_file_that_is_no_table_is_not_written() -> None:
    fd = os.memfd_create("another", os.MFD_ALLOW_SEALING)
    try:
        with pytest.raises(TableError):
            second_move.ask(fd, 7, None, shut_down=False)
        assert os.fstat(fd).st_size == 0
    finally:
        os.close(fd)


@given(st.binary(min_size=48, max_size=48))
def test_whatever_is_there_is_an_answer_or_none(block: bytes) -> None:
    try:
        state = second_move.decode(block)
    except TableError:
        return
    assert state.reason in REASONS | {"", OTHER}


def test_it_lies_where_the_preload_has_it() -> None:
    text = (build.SOURCES / "zone_table.h").read_text(encoding="utf-8")
    assert f"ZONE_TABLE_MOVE = {second_move.REQUEST_AT}," in text
    answers = (build.SOURCES / "second" / "request.h").read_text(encoding="utf-8")
    names = re.findall(r"ANSWER_([A-Z_]+)", answers)
    assert [each.name for each in MoveAnswer][1:] == names
