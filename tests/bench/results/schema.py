"""The form of `docs/results/<suite>-<yyyymmdd>.json`; what does not keep to it is refused, with file and reason."""

import datetime
import math
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

DIRECTORY: Final = Path(__file__).resolve().parents[3] / "docs" / "results"

Text = Annotated[str, Meta(min_length=1, pattern=r"^[^\n]+$")]
Suite = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,39}$")]
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


def newest(results: list[Result]) -> dict[str, Result]:
    """The newest run of each suite, by its name."""
    return {result.suite: result for result in sorted(results, key=lambda result: result.date)}


def encode(result: Result) -> bytes:
    """The file's text: indented, for a diff to be read."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"
