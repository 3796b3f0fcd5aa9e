"""The list of contained faults: a line of the module is read whole, and anything else is counted and left."""

from pathlib import Path

import pytest

from mpsguard.linux.nvidia import fault_list
from mpsguard.linux.nvidia.fault_list import ContainedFault, FaultList, parse, parse_line

LINE = (
    "7 time=5000000000 pid=4242 start=777 alive=1 gone=0 address=0x7fff12345000 access=ATOMIC_STRONG type=INVALID_PTE "
    "engine=SM gpu=GPU-6d6f636b-2d67-7075-0001-020304050607 veid=3"
)
FAULT = ContainedFault(
    number=7,
    nanoseconds=5_000_000_000,
    pid=4242,
    start_ticks=777,
    alive=True,
    gone=False,
    address=0x7FFF12345000,
    access="atomic strong",
    fault_type="invalid pte",
    engine="sm",
)


def test_a_line_of_the_module() -> None:
    assert parse_line(LINE) == FAULT


def test_words_of_a_newer_module_are_passed_over() -> None:
    assert parse_line(f"{LINE} sinks=12 note") == FAULT


@pytest.mark.parametrize(
    ("word", "other"),
    [
        ("7 time", "x time"),
        ("time=5000000000", "time=-1"),
        ("time=5000000000", "time=99999999999999999999"),
        ("pid=4242", "pid=4194305"),
        ("pid=4242", "pid=\u0664"),
        ("start=777", "start=1_000"),
        ("alive=1", "alive=2"),
        ("gone=0", "gone="),
        ("address=0x7fff12345000", "address=7fff12345000"),
        ("address=0x7fff12345000", "address=0x10000000000000000"),
        ("access=ATOMIC_STRONG", "access=wr\x1bite"),
        ("type=INVALID_PTE", "type="),
        ("engine=SM", f"engine={'A' * 41}"),
    ],
)
def test_a_line_that_is_not_as_it_should_be_is_none(word: str, other: str) -> None:
    assert word in LINE
    assert parse_line(LINE.replace(word, other)) is None


@pytest.mark.parametrize("name", ["time", "pid", "start", "alive", "gone", "address", "access", "type", "engine"])
def test_every_part_is_needed(name: str) -> None:
    assert parse_line(LINE.replace(f" {name}=", f" no{name}=")) is None


def test_a_process_without_a_pid_here_is_not_there_to_be_named() -> None:
    found = parse_line(LINE.replace("pid=4242", "pid=0"))
    assert found is not None
    assert not found.alive


def test_the_oldest_comes_first_and_what_is_no_line_is_counted() -> None:
    older = LINE.replace("7 time=5000000000", "3 time=4000000000")
    text = f"{LINE}\n\nrubbish\n{older}\n{LINE[:30]}".encode() + b"\xff"
    faults, unreadable = parse(text)
    assert [fault.number for fault in faults] == [3, 7]
    assert unreadable == 3


def test_an_open_list_is_read_anew_each_time(tmp_path: Path) -> None:
    path = tmp_path / "list"
    path.write_text(f"{LINE}\n")
    held = FaultList(path)
    assert parse(held.read()) == ([FAULT], 0)
    path.write_text("")
    assert held.read() == b""
    held.close()
    held.close()


def test_no_more_of_it_is_read_than_a_guard_has_time_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_list, "_MOST_BYTES", 10 * len(LINE))
    monkeypatch.setattr(fault_list, "_PIECE", 100)
    path = tmp_path / "list"
    path.write_text(f"{LINE}\n" * 50)
    held = FaultList(path)
    faults, unreadable = parse(held.read())
    held.close()
    assert 9 <= len(faults) <= 11
    assert unreadable == 0
