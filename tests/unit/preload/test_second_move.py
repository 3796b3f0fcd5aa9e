"""Answers to requests for moves, in memory in which the program may write anything."""

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


def test_it_reads_what_was_answered(table: int) -> None:
    state = MoveState(7, MoveAnswer.FAILED, 0.25, 0.0125, "managed_memory", 99)
    os.pwrite(table, second_move.encode(state), second_move.AT)
    assert second_move.read(table) == state


@given(st.binary(min_size=56, max_size=56))
def test_whatever_is_there_is_an_answer_or_none(block: bytes) -> None:
    try:
        state = second_move.decode(block)
    except TableError:
        return
    assert state.reason in REASONS | {"", OTHER}


def test_it_lies_where_the_preload_has_it() -> None:
    text = (build.SOURCES / "zone_table.h").read_text(encoding="utf-8")
    assert f"ZONE_TABLE_MOVE = {second_move.AT}," in text
    answers = (build.SOURCES / "second" / "request.h").read_text(encoding="utf-8")
    names = re.findall(r"ANSWER_([A-Z_]+)", answers)
    assert [each.name for each in MoveAnswer][1:] == names
