"""What a measurement yields: a row of the result file, and what the file cannot say beside it."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.bench.results import recorder
from tests.bench.results.recorder import Recorder
from tests.bench.results.schema import Peer, Row


@dataclass(frozen=True)
class Finding:
    """One row; `samples` are what its spread was made of, `note` is printed below it in the table."""

    row: Row
    note: str = ""
    samples: tuple[float, ...] = ()

    def record(self, into: Recorder) -> None:
        """Put the row into a result file."""
        into.add(self.row)


def all_of(name: str, got: int, wanted: int, unit: str, *, note: str = "") -> Finding:
    """A finding that holds if everything wanted was got."""
    bar = f"{wanted} of {wanted}"
    return Finding(Row(name=name, value=got, count=wanted, unit=unit, bar=bar, holds=got == wanted, runs=1), note)


def none_of(
    name: str, failed: int, total: int, unit: str, *, runs: int = 1, note: str = "", peer: Peer | None = None
) -> Finding:
    """A finding that holds if nothing failed, and if there was something that could have."""
    return Finding(
        Row(
            name=name,
            value=failed,
            count=total or None,
            unit=unit,
            bar=f"0 of {total}",
            holds=failed == 0 and total > 0,
            runs=runs,
            peer=peer,
        ),
        note,
    )


def sampled(
    name: str,
    samples: Sequence[float],
    *,
    unit: str,
    bar: str,
    holds: bool,
    peer: Sequence[float] | None = None,
    peer_name: str = "stock",
    note: str = "",
) -> Finding:
    """A finding made of several values: the median stands for them, the peer's (stock's) beside it."""
    kept = _rounded(samples)
    beside = recorder.peer(peer_name, _rounded(peer)) if peer else None
    row = recorder.measured_row(name, kept, unit=unit, bar=bar, holds=holds, peer=beside)
    return Finding(row, note, kept)


def not_measured(name: str, why: str) -> Finding:
    """A measurement that could not be made, as a row that does not hold."""
    return Finding(Row(name=f"{name}: not measured", value=0, unit="", bar="measured", holds=False, runs=1), why)


def _rounded(samples: Sequence[float]) -> tuple[float, ...]:
    """Six significant digits: more would be noise in a file that people compare."""
    return tuple(float(f"{value:.6g}") for value in samples)
