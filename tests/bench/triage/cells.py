"""What came of one fault, one arm, one repetition: a cell; and the file of all of them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from tests.bench.core.errors import SuiteError
from tests.bench.triage.verdict import Verdict

STOCK: Final = "stock"
GUARDED: Final = "guarded"
ARMS: Final = (STOCK, GUARDED)

Key = tuple[str, str, int]


class XidSeen(msgspec.Struct, frozen=True):
    """A line of the kernel log after the injection."""

    number: int
    whose: str
    """The owner of the pid in the line: culprit, innocent, server, other, or none, for a line without a pid."""
    after_ms: float


class Innocent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of the other clients."""

    code: int = 0
    """The error it died of; 0 if it lived and finished its work."""
    after_ms: float | None = None


class Cell(msgspec.Struct, frozen=True, omit_defaults=True):
    """One fault, injected once. Times are milliseconds after the injection."""

    fault: str
    arm: str
    repetition: int
    effects: tuple[str, ...] = ()
    """How it is known that the fault happened; none: it did not, and the suite has failed."""
    returned: int | None = None
    """What the culprit's synchronisation returned; None if it did not return."""
    died: int | None = None
    """The error that ended the culprit's work."""
    ended: int | None = None
    """The exit status of the culprit's process; a signal is negative. None if the harness had to end it."""
    innocents: tuple[Innocent, ...] = ()
    xids: tuple[XidSeen, ...] | None = None
    """None if the kernel log could not be read."""
    verdict: Verdict | None = None
    """What the guard said; None in the stock arm."""
    skipped: str = ""
    """Why this machine cannot inject it."""
    error: str = ""
    """Why the cell could not be made."""
    after_ms: float | None = None
    """When the culprit's work ended by an error."""

    @property
    def key(self) -> Key:
        """What it is the result of."""
        return self.fault, self.arm, self.repetition

    @property
    def made(self) -> bool:
        """Whether the fault was injected and what followed was seen to the end."""
        return not self.skipped and not self.error


class CellFile(msgspec.Struct, frozen=True):
    """All cells, and what they were measured on."""

    date: str
    commit: str
    gpu: str | None
    driver: str | None
    cuda: str | None
    cells: tuple[Cell, ...]

    @property
    def origin(self) -> tuple[str, str | None, str | None]:
        """Cells of different commits, GPUs or drivers do not mix."""
        return self.commit, self.gpu, self.driver


def file_name(date: str) -> str:
    """`2026-11-20` to `triage-cells-20261120.json`."""
    return f"triage-cells-{date.replace('-', '')}.json"


def read(path: Path) -> CellFile:
    """Read one file; SuiteError if it is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=CellFile)
    except (OSError, msgspec.MsgspecError) as error:
        raise SuiteError(f"{path}: {error}") from None


def write(path: Path, content: CellFile) -> None:
    """One cell a line: compact, and a diff can be read."""
    head = msgspec.json.encode(msgspec.structs.replace(content, cells=())).removesuffix(b"[]}")
    lines = b",\n".join(msgspec.json.encode(cell) for cell in content.cells)
    path.write_bytes(head + b"[\n" + lines + b"\n]}\n")


def merged(files: Iterable[CellFile]) -> CellFile:
    """The cells of several runs, a later one's in the place of an earlier one's; SuiteError if they do not belong."""
    files = list(files)
    if not files:
        raise SuiteError("no cell file was given")
    origins = {file.origin for file in files}
    if len(origins) > 1:
        raise SuiteError(f"cells of different commits or machines do not mix: {sorted(map(str, origins))}")
    cells: dict[Key, Cell] = {}
    for cell in (cell for file in files for cell in file.cells):
        if cell.key not in cells or cell.made or not cells[cell.key].made:
            cells[cell.key] = cell
    return msgspec.structs.replace(files[-1], cells=tuple(sorted(cells.values(), key=lambda cell: cell.key)))
