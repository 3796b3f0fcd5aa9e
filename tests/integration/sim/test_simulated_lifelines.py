"""Lifelines over the simulated driver: a crashed client's neighbours go on, and all of it says that it is simulated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded

pytestmark = pytest.mark.slow(seconds=8, reason="starts guards and clients, and waits for lifelines")


@contextmanager
def over_driver(crash_hold: float) -> Iterator[Guarded]:
    with Guarded() as running:
        text = running.config.read_text().replace("[guard]", "[guard]\nsimulated_driver = true")
        running.config.write_text(f"{text}\n[domain.lifelines]\ncrash_hold = {crash_hold}\n")
        running.start()
        yield running


def watched(guarded: Guarded) -> bool:
    watches = guarded.asked("clients")["watches"]
    return bool(watches) and all(watch["watched"] for watch in watches)


def test_a_neighbour_outlives_a_crash_with_a_kernel_in_flight() -> None:
    with over_driver(crash_hold=30) as guarded:
        neighbour = guarded.client()
        neighbour.expect("started")
        killed = guarded.client("--fault", "kill", "--after", "0.2")
        killed.expect("started")
        wait_for("both watched", lambda: watched(guarded))
        assert killed.wait() == -9
        (held,) = wait_for("the lifeline", lambda: guarded.asked("lifelines")["lifelines"])
        assert held["pid"] == killed.pid
        # Longer than its kernel runs: it ends by itself. What the guard lets go of then harms no client.
        assert neighbour.silent(4.0)
        assert guarded.ctl("lifelines", "--release", str(killed.pid)).returncode == 0
        wait_for("its end", lambda: not guarded.asked("lifelines")["lifelines"])
        assert neighbour.silent(0.5)
        (incident,) = guarded.asked("incidents")["incidents"]
        assert incident["culprit"]["pid"] == killed.pid
        assert (incident["confidence"], incident["victims"]) == ("proven", [])


def test_a_kernel_that_outlives_the_lifeline_faults_as_on_a_gpu() -> None:
    with over_driver(crash_hold=0.3) as guarded:
        neighbour = guarded.client()
        neighbour.expect("started")
        killed = guarded.client("--fault", "kill", "--after", "0.2")
        killed.wait()
        assert neighbour.expect("died")["error"] == 700
        assert guarded.events("lifeline_released")


def test_the_sensor_says_that_it_is_simulated() -> None:
    with over_driver(crash_hold=0.3) as guarded:
        assert "uvm: SIMULATED: attached to 0 of 0 clients" in guarded.ctl("status").stdout
        guarded.client().expect("started")
        wait_for("it is watched", lambda: watched(guarded))
