"""Programs with work in flight at a neighbour's SM fault, with spare memory for epochs."""

from collections.abc import Iterator
from typing import Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.finding import Finding
from tests.bench.isolation.partial import kept
from tests.bench.second_driver import idle, second
from tests.bench.second_driver.programs import State


def measure(bench: Bench) -> Iterator[Finding]:
    """All of it, and the rows of what was made."""
    study = idle.Study(bench, State.BUSY, second.SPARE)
    yield from kept(study.make, study.rows)


MEASUREMENT: Final = Measurement("busy", "unmodified programs with work in flight at a neighbour's SM fault", measure)
