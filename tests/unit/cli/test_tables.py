"""Tables at the width of a terminal: one line a row, and what identifies a row is whole."""

import io

import pytest
from rich.console import Console

from mpsguard.cli.tables import show_table

ID = "20261123-014512-1"
ROWS = [
    (ID, "2026-11-23 01:45:12.123 UTC", "mmu", "31", "0000:17:00.0", "default-0", f"{7} python {'x' * 60}", "proven"),
    ("20261123-014512-2", "2026-11-23 01:45:13.123 UTC", "sm", "13", "0000:17:00.0", "default-0", "-", "unknown"),
]
HEADINGS = ("ID", "WHEN", "CLASS", "XIDS", "GPU", "LANE", "CULPRIT", "CONFIDENCE")


def shown(width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), record=True)
    show_table(console, HEADINGS, ROWS, optional=("GPU", "XIDS", "LANE", "WHEN"), cut="CULPRIT")
    return console.export_text().splitlines()


@pytest.mark.parametrize("width", [80, 100, 132])
def test_a_row_is_a_line_and_its_id_is_whole(width: int) -> None:
    lines = shown(width)
    assert max(map(len, lines)) <= width
    assert sum(line.startswith(ID) for line in lines) == 1
    assert (lines[-1] == "not shown at this width: GPU, XIDS, LANE, WHEN (--json has all)") == (width == 80)


def test_in_a_pipe_nothing_is_left_out_or_cut() -> None:
    lines = shown(1000)
    assert any("x" * 60 in line for line in lines)
    assert "0000:17:00.0" in "\n".join(lines)
    assert not any("not shown" in line for line in lines)
