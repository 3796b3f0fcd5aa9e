"""What a witness says of a standstill: that of the fault, or none."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.core.client import Clients
from tests.bench.core.errors import SuiteError
from tests.bench.failover import first_word
from tests.unit.bench.telling import program


@pytest.fixture
def clients() -> Iterator[Clients]:
    with Clients() as started:
        yield started


def goes_on(clients: Clients, begun: float, gap: float, fault: float, last: str = "finished") -> float:
    text = f"emit('begin'); sys.stdin.read(); emit({last!r}, max_gap={gap!r}, max_gap_began={begun!r})"
    witness = clients.start(program(text), Path("/nonexistent"), "witness")
    witness.wait_for("begin")
    return first_word._went_on(witness, fault)


@pytest.mark.parametrize("early", [-0.001, 0.002])
def test_the_witness_goes_on_at_the_end_of_the_standstill_about_the_fault(clients: Clients, early: float) -> None:
    fault = time.monotonic()
    assert goes_on(clients, fault - early, 0.02, fault) == pytest.approx(fault - early + 0.02)


@pytest.mark.parametrize(("begun", "gap"), [(-1.0, 0.5), (0.05, 0.5)])
def test_a_standstill_at_another_time_is_none(clients: Clients, begun: float, gap: float) -> None:
    fault = time.monotonic()
    with pytest.raises(SuiteError, match="stood still"):
        goes_on(clients, fault + begun, gap, fault)


def test_a_witness_that_dies_has_seen_nothing(clients: Clients) -> None:
    fault = time.monotonic()
    with pytest.raises(SuiteError, match="died"):
        goes_on(clients, fault, 0.02, fault, last="died")
