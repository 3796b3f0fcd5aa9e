"""server.log: the lines that tell of a fault, and reading it while it grows."""

from pathlib import Path

import pytest

from mpsguard.guard.lanes import server_log
from mpsguard.guard.lanes.server_log import LogHint
from mpsguard.linux.files.log_tail import LogTail


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[2026-11-20 14:01:28.554 Server   479] Server is handling a fatal GPU error.", (479, LogHint.FAULT_BEGINS)),
        (
            "[2026-11-20 14:01:28.556 Server   479] Failed to accept client {PID: 755, Context ID: 1} with status 807",
            (479, LogHint.FAULT_BEGINS),
        ),
        (
            "[2026-11-20 14:01:28.995 Server   479] Destroy server context on device 0 (NVIDIA H200)",
            (479, LogHint.FAULT_ENDS),
        ),
        ("[2026-11-20 14:01:20.377 Control   467] NEW SERVER 479: Ready", None),
        ("Server is handling a fatal GPU error.", None),
        ("", None),
        ("[] Server 1] x", None),
    ],
)
def test_hints(line: str, expected: tuple[int, LogHint] | None) -> None:
    assert server_log.hint(line) == expected


def test_only_what_came_since_is_read_and_only_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("old\n")
    tail = LogTail(path)
    assert tail.read() == []
    with path.open("a") as log:
        log.write("one\ntw")
        log.flush()
        assert tail.read() == ["one"]
        log.write("o\n")
        log.flush()
        assert tail.read() == ["two"]


def test_a_log_that_was_cut_is_read_anew_and_one_that_is_missing_reads_as_empty(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    tail = LogTail(path)
    assert tail.read() == []
    path.write_text("first line of a log that appeared\n")
    assert tail.read() == ["first line of a log that appeared"]
    path.write_text("short\n")
    assert tail.read() == ["short"]
    path.unlink()
    assert tail.read() == []


def test_of_a_flood_only_the_end_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("")
    tail = LogTail(path)
    path.write_text("x" * 80 + "\n" + ("y" * 99 + "\n") * 10_000)
    lines = tail.read()
    assert 1000 < len(lines) < 4000
    assert lines[-1] == "y" * 99
