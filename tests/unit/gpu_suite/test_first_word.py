"""What a witness says of a standstill: that of the fault, or none."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_suite.core.client import Clients
from gpu_suite.core.errors import SuiteError
from gpu_suite.failover import first_word

WITNESS = """
import json, sys, time
def emit(event, **more):
    head = {"event": event, "pid": 1, "monotonic": time.monotonic(), "realtime": time.time()}
    print(json.dumps(head | more), flush=True)
emit("begin")
sys.stdin.read()
emit(sys.argv[1], max_gap=float(sys.argv[3]), max_gap_began=float(sys.argv[2]))
"""


@pytest.fixture
def clients() -> Iterator[Clients]:
    with Clients() as started:
        yield started


def goes_on(clients: Clients, begun: float, gap: float, fault: float, last: str = "finished") -> float:
    witness = clients.start(
        [sys.executable, "-c", WITNESS, last, str(begun), str(gap)], Path("/nonexistent"), "witness"
    )
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
