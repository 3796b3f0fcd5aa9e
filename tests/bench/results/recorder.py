"""What a measuring script uses: `Recorder(suite=..., script=...).row(...).measured(...).write()`."""

import datetime
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec

from tests.bench.results import origin
from tests.bench.results.schema import DIRECTORY, Number, Peer, Result, ResultError, Row, encode


class Recorder:
    """Collects the rows of one run and writes them as one file.

    Commit and machine are looked up at the start: a run that could not say them would be worth nothing at its end.
    """

    def __init__(self, *, suite: str, script: str, date: datetime.date | None = None) -> None:
        self._suite, self._script = suite, script
        self._date = date or datetime.datetime.now(tz=datetime.UTC).date()
        self._commit = origin.commit()
        self._gpu = origin.gpu()
        self._rows: list[Row] = []

    def row(
        self,
        name: str,
        value: Number,
        *,
        unit: str,
        bar: str,
        holds: bool,
        runs: int = 1,
        count: int | None = None,
        peer: Peer | None = None,
    ) -> Self:
        """Add one value: `row("clients that died", 0, count=4, ...)` is "0 of 4"."""
        return self.add(Row(name=name, value=value, unit=unit, bar=bar, holds=holds, runs=runs, count=count, peer=peer))

    def measured(
        self, name: str, samples: Sequence[float], *, unit: str, bar: str, holds: bool, peer: Peer | None = None
    ) -> Self:
        """Add what was measured several times; see `measured_row`."""
        return self.add(measured_row(name, samples, unit=unit, bar=bar, holds=holds, peer=peer))

    def add(self, row: Row) -> Self:
        """Add a row as it is."""
        self._rows.append(row)
        return self

    def write(self, directory: Path = DIRECTORY) -> Path:
        """Write the file, over one of the same suite and day; return its path. Raises ResultError, and OSError.

        It may be called after each part of a run: the file has what was added so far.
        """
        try:
            result = Result(
                suite=self._suite,
                date=self._date,
                commit=self._commit,
                gpu=self._gpu.name,
                driver=self._gpu.driver,
                cuda=self._gpu.cuda,
                script=self._script,
                rows=tuple(self._rows),
            )
            text = encode(result)
            # Decoding is what checks patterns and bounds: nothing is written that could not be read again.
            msgspec.json.decode(text, type=Result)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ResultError(f"{self._suite}: {error}") from None
        path = directory / result.file_name
        # Not by Directory: a checkout may be writable for its developers' group.
        draft = path.with_suffix(".new")
        draft.write_bytes(text)
        draft.replace(path)
        return path


def measured_row(
    name: str, samples: Sequence[float], *, unit: str, bar: str, holds: bool, peer: Peer | None = None
) -> Row:
    """What was measured several times: the median stands for it, the spread and the count go with it."""
    low, middle, high = summary(samples)
    return Row(
        name=name,
        value=middle,
        min=low,
        median=middle,
        max=high,
        count=len(samples),
        unit=unit,
        bar=bar,
        holds=holds,
        runs=len(samples),
        peer=peer,
    )


def peer(name: str, samples: Sequence[float]) -> Peer:
    """The other side of a `measured` row."""
    low, middle, high = summary(samples)
    return Peer(name=name, value=middle, min=low, median=middle, max=high, count=len(samples))


def summary(samples: Sequence[float]) -> tuple[float, float, float]:
    """Least, median, greatest."""
    return min(samples), statistics.median(samples), max(samples)
