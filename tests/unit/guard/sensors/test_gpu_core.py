"""GPU core dumps: what is read of a good one, and that a bad one is only ever refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault_injection.sim.core_dump import core_dump, sm_row, thread_row
from mpsguard.guard.sensors.gpu_core import DumpFile, GpuCore, NotACoreError, SmException, exception_name, parse

PC = 0x7F48A37A3840
CULPRIT = core_dump(sms=[sm_row(0, 6), sm_row(1), sm_row(124, 6, PC)], threads=[thread_row(6), thread_row()], grids=1)
INNOCENT = core_dump(sms=[sm_row(0), sm_row(124, 6, PC)], threads=[thread_row()], grids=2)


@pytest.mark.parametrize("extended", [False, True])
def test_the_tables_are_read(extended: bool) -> None:
    dump = core_dump(
        sms=[sm_row(0, 6), sm_row(1), sm_row(124, 6, PC)], threads=[thread_row(), thread_row(6)], grids=1,
        extended=extended,
    )  # fmt: skip
    assert parse(dump) == GpuCore((SmException(0, 6, None), SmException(124, 6, PC)), grids=1, raised=True)


def test_an_innocent_process_has_the_sms_of_all_and_no_exception_of_its_own() -> None:
    assert parse(INNOCENT) == GpuCore((SmException(124, 6, PC),), grids=2, raised=False)
    assert parse(core_dump()) == GpuCore((), 0, False)


def test_exceptions_have_names_and_unknown_ones_a_number() -> None:
    assert exception_name(6) == "misaligned address"
    assert exception_name(4711) == "exception 4711"


@given(cut=st.integers(0, len(CULPRIT) - 1))
def test_a_dump_that_is_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(NotACoreError):
        parse(CULPRIT[:cut])


@given(at=st.integers(0, len(CULPRIT) - 1), written=st.binary(min_size=1, max_size=16))
def test_whatever_is_written_over_it_is_read_or_refused(at: int, written: bytes) -> None:
    spoiled = bytearray(CULPRIT)
    spoiled[at : at + len(written)] = written
    try:
        parse(bytes(spoiled))
    except NotACoreError:
        return


@given(st.binary(max_size=512))
def test_other_files_are_refused(noise: bytes) -> None:
    with pytest.raises(NotACoreError):
        parse(noise)


@pytest.mark.parametrize("start", [1 << 63, (1 << 64) - 1, 1 << 62])
def test_section_headers_where_no_file_reaches_are_refused(tmp_path: Path, start: int) -> None:
    """With their number in the first of them; the kernel takes no such offset, and Python none of the larger ones."""
    dump = bytearray(core_dump(extended=True))
    dump[40:48] = start.to_bytes(8, "little")
    path = tmp_path / "core.1"
    path.write_bytes(dump)
    with path.open("rb") as file, pytest.raises(NotACoreError):
        parse(DumpFile(file.fileno()))
