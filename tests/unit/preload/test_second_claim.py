"""Claims about second drivers: what a program says of itself, read from memory in which it may write anything."""

from __future__ import annotations

import fcntl
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.preload import build, second_claim
from mpsguard.preload.second_claim import OTHER, REASONS, ClaimPhase, RepetitionState, SecondClaim
from mpsguard.preload.zone_table import TableError

HEAD = struct.pack("<8s6I", b"MPSGZON1", 1, 4096, 64, 0, 77, 0)


@contextmanager
def table(block: bytes, *, head: bytes = HEAD, sealed: bool = True) -> Iterator[int]:
    fd = os.memfd_create("mpsguard-zones", os.MFD_ALLOW_SEALING)
    try:
        os.pwrite(fd, head.ljust(second_claim.AT, b"\0") + block.ljust(64, b"\0"), 0)
        if sealed:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        yield fd
    finally:
        os.close(fd)


def test_it_says_what_was_written() -> None:
    again = SecondClaim(ClaimPhase.MOVED, "cold", "no_copies_left", times=3, makes_ready=True)
    for claim in (SecondClaim(ClaimPhase.REFUSED, "hot", "repeated_fault", RepetitionState.FAULTED), again):
        with table(second_claim.encode(claim, 2)) as fd:
            assert second_claim.read(fd) == claim


@pytest.mark.parametrize("phase", [ClaimPhase.WENT_OVER, ClaimPhase.MOVED])
def test_a_program_with_an_older_preload_has_gone_over_once_and_does_not_again(phase: ClaimPhase) -> None:
    found = second_claim.decode(second_claim.LAYOUT.pack(2, phase, 1, 0, 0, b""))
    assert found is not None
    assert (found.times, found.reason, found.may_go_over) == (1, "no_copies_left", False)


def test_a_table_without_a_claim_has_none() -> None:
    with table(b"") as fd:
        assert second_claim.read(fd) is None


def test_a_reason_that_is_not_known_is_one_word() -> None:
    """A program's own text reaches no reader."""
    for name in (b"<script>", b"x" * 32, b"\xff\xfe", b"managed_memory\0evil"):
        found = second_claim.decode(second_claim.LAYOUT.pack(2, 1, 1, 0, 0, name))
        assert found == SecondClaim(ClaimPhase.WAITING, "cold", OTHER)


def test_an_outcome_of_a_repetition_that_is_not_known_is_none() -> None:
    found = second_claim.decode(second_claim.LAYOUT.pack(2, 1, 1, 5, 0, b""))
    assert found is not None
    assert found.repetition is RepetitionState.NO_RESULT


def test_it_numbers_outcomes_as_the_preload_does() -> None:
    text = (build.SOURCES / "second" / "claim.h").read_text(encoding="utf-8")
    names = re.findall(r"^    CLAIM_(NOT_REPEATED|UNDER_WAY|COMPLETED|FAULTED|NO_RESULT)\b", text, re.MULTILINE)
    assert [name.replace("NOT_REPEATED", "NONE") for name in names] == [each.name for each in RepetitionState]


@pytest.mark.parametrize("words", [(3, 1, 1), (2, 9, 1), (2, 1, 9)])
def test_a_claim_that_makes_no_sense_is_refused(words: tuple[int, int, int]) -> None:
    with table(second_claim.LAYOUT.pack(*words, 0, 0, b"")) as fd, pytest.raises(TableError):
        second_claim.read(fd)


def test_what_is_no_table_is_refused() -> None:
    with table(b"", head=b"") as fd, pytest.raises(TableError):
        second_claim.read(fd)
    with table(b"", sealed=False) as fd, pytest.raises(TableError):
        second_claim.read(fd)


@given(st.binary(max_size=64))
def test_whatever_is_in_the_memory_is_bounded(block: bytes) -> None:
    with table(block) as fd:
        try:
            claim = second_claim.read(fd)
        except TableError:
            return
        assert claim is None or claim.reason in REASONS | {"", OTHER}


def test_it_knows_all_reasons_of_the_preload() -> None:
    text = (build.SOURCES / "second" / "reasons.h").read_text(encoding="utf-8")
    assert set(re.findall(r"^    X\((\w+)\)", text, re.MULTILINE)) <= REASONS


def test_it_lies_where_the_preload_writes_it() -> None:
    text = (build.SOURCES / "zone_table.h").read_text(encoding="utf-8")
    assert f"ZONE_TABLE_CLAIM = {second_claim.AT}," in text
