"""The form of `docs/results/<suite>-<yyyymmdd>.json`; what does not keep to it is refused, with file and reason."""

import datetime
import math
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

DIRECTORY: Final = Path(__file__).resolve().parents[3] / "docs" / "results"

_EARLIER: Final = frozenset({"failover-reload-20261122.json"})
"""Files that are older than others of their day with a name before theirs: a file does not have the time of day."""

Text = Annotated[str, Meta(min_length=1, pattern=r"^[^\n]+$")]
Suite = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,39}$")]
Commit = Annotated[str, Meta(pattern=r"^[0-9a-f]{7,40}(-dirty)?$")]
Count = Annotated[int, Meta(ge=1)]
Number = int | float


class ResultError(Exception):
    """A result file that cannot be taken at its word: one line with the file and the reason."""


class Figure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One measured value, with its spread where it was measured more than once."""

    value: Number
    min: Number | None = None
    median: Number | None = None
    max: Number | None = None
    count: Count | None = None
    """How many cases the value speaks of: samples behind a median, handshakes behind a number of leaked fds."""

    def __post_init__(self) -> None:
        spread = (self.min, self.median, self.max)
        if not all(math.isfinite(number) for number in (self.value, *spread) if number is not None):
            raise ValueError("numbers must be finite")
        given = [number for number in spread if number is not None]
        if len(given) not in {0, len(spread)}:
            raise ValueError("min, median and max go together")
        if given != sorted(given):
            raise ValueError("min <= median <= max does not hold")

    @property
    def spread(self) -> tuple[Number, Number] | None:
        """Least and greatest, if there is more than the value."""
        return None if self.min is None or self.max is None else (self.min, self.max)


class Peer(Figure, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What stands beside us in the same run, in the row's unit: stock MPS, say."""

    name: Text


class Row(Figure, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One thing that was measured: our figure, the limit it is held to, and the peer's figure."""

    name: Text
    unit: str
    bar: Text
    """The limit, as text: `median difference <= 3 ms`."""
    holds: bool
    runs: Count
    """How often the measurement as a whole was made."""
    peer: Peer | None = None
    withdrawn: Text | None = None
    """Why the figure is wrong, where that was found later. It stays on record, and counts for nothing."""


class Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run of one suite."""

    suite: Suite
    date: datetime.date
    commit: Commit
    gpu: Text | None
    """None: the run used no GPU. The same holds for the next two."""
    driver: Text | None
    cuda: Text | None
    script: Text
    """The command that makes this file again."""
    rows: Annotated[tuple[Row, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        names = [row.name for row in self.rows]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two rows are called {twice!r}")

    @property
    def file_name(self) -> str:
        """The name its file must have."""
        return f"{self.suite}-{self.date:%Y%m%d}.json"

    @property
    def holds(self) -> bool:
        """Whether every row keeps to its bar."""
        return all(row.holds or row.withdrawn is not None for row in self.rows)


def load(path: Path) -> Result:
    """Read one file; raises ResultError."""
    try:
        result = msgspec.json.decode(path.read_bytes(), type=Result)
    except OSError as error:
        raise ResultError(f"{path}: cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise ResultError(f"{path}: {error}") from None
    if path.name != result.file_name:
        raise ResultError(f"{path}: by its suite and date this file is called {result.file_name}")
    return result


def load_all(directory: Path = DIRECTORY) -> list[Result]:
    """Every result of the directory, by suite and date; raises ResultError."""
    return sorted(map(load, directory.glob("*.json")), key=lambda result: (result.suite, result.date))


class Superseded(msgspec.Struct, frozen=True):
    """A row that was measured again since."""

    row: Row
    of: Result
    by: Result


def newest(results: list[Result]) -> list[Result]:
    """Return the newest of each suite, by suite, without the rows that another part of it has measured again since.

    A suite's parts are called after it: `isolation-preload` is of `isolation`. A part is measured for itself because
    of the whole: of one day, it is the later one. A run with --quick measures nothing well: of one day, it is the
    earlier one. Of two parts of one day, the one with the later name counts, unless `_EARLIER` has it.
    """
    last = _last(results)
    kept = []
    for _, result in sorted(_latest(results).items()):
        rows = tuple(row for row in result.rows if last[_family(result), row.name] is result)
        if rows:
            kept.append(msgspec.structs.replace(result, rows=rows))
    return kept


def superseded(results: list[Result]) -> list[Superseded]:
    """Return the rows that `newest` leaves out, oldest first: measured again, or of an older file of their suite."""
    last, latest = _last(results), _latest(results)
    found = []
    for result in sorted(results, key=_age):
        for row in result.rows:
            by = last[_family(result), row.name]
            by = latest[result.suite] if by is result else by
            if by is not result:
                found.append(Superseded(row, result, by))
    return found


def _latest(results: list[Result]) -> dict[str, Result]:
    return {result.suite: result for result in sorted(results, key=_age)}


def _last(results: list[Result]) -> dict[tuple[str, str], Result]:
    """Return the newest result with each row, by the family of its suite and the row's name."""
    return {(_family(result), row.name): result for result in sorted(results, key=_age) for row in result.rows}


def _age(result: Result) -> tuple[datetime.date, bool, bool, bool, str]:
    quick = "--quick" in result.script.split()
    return result.date, result.suite != _family(result), not quick, result.file_name not in _EARLIER, result.suite


def _family(result: Result) -> str:
    return result.suite.partition("-")[0]


def encode(result: Result) -> bytes:
    """The file's text: indented, for a diff to be read."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"
