"""From a verdict to what is done about it, through the whole guard, over the simulated stack.

A sentinel's made-up dump gives the simulation a culprit that lives: likely, and no more.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fault_injection.sim.core_dump import core_dump, sm_row
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded, Program
from tests.integration.sim.sentinels import code_of, culprit_that_lives_on, do_wrong, logged, sentinel

pytestmark = pytest.mark.slow(seconds=70, reason="waits for decisions on both lanes")


@contextmanager
def accused(library: Path, step: str) -> Iterator[tuple[Guarded, Program, str]]:
    """A guard with one remedy for SM faults, the likely culprit of one, which lives on, and the incident."""
    for left in ("core", "refuse"):
        (library / left).unlink(missing_ok=True)
    domain = f"sentinel = true\n[domain.remedies]\nsm = [{step}]" if step else "sentinel = true"
    environment = {"LD_LIBRARY_PATH": str(library)}
    with Guarded(domain=domain, environment=environment) as guarded:
        guarded.start()
        innocent = guarded.client()
        culprit = culprit_that_lives_on(guarded)
        for each in (innocent, culprit):
            each.expect("started")
        pid = sentinel(guarded)
        (library / "core").write_bytes(core_dump(sms=[sm_row(0), sm_row(9, 6, code_of(culprit))]))
        do_wrong(culprit)
        wait_for("the fault", lambda: any(line.get("state") == "FAULT" for line in logged(guarded, "lane_state")))
        os.kill(pid, signal.SIGUSR1)
        told = wait_for("the name", lambda: [line for line in logged(guarded, "incident") if line["culprit"]])
        assert (told[-1]["culprit"], told[-1]["confidence"]) == (culprit.pid, "likely")
        yield guarded, culprit, told[-1]["id"]


def remedies(guarded: Guarded, phase: str) -> list[dict[str, Any]]:
    return [line for line in logged(guarded, "remedy") if line["phase"] == phase]


def journaled(guarded: Guarded, incident_id: str, kind: str) -> list[dict[str, Any]]:
    record = guarded.json("incident", "show", incident_id)
    return [decision["data"] for decision in record["decisions"] if decision["kind"] == kind]


def test_enforced_it_ends_the_culprit_and_the_journal_and_reports_say_so(library: Path, tmp_path: Path) -> None:
    step = '{remedy = "terminate", mode = "enforce", at_least = "likely", grace = 0.2}'
    with accused(library, step) as (guarded, culprit, incident_id):
        assert culprit.wait() == -signal.SIGKILL
        (outcome,) = wait_for("the outcome", lambda: remedies(guarded, "outcome"))
        assert (outcome["remedy"], outcome["outcome"], outcome["culprit"]["pid"]) == ("terminate", "done", culprit.pid)
        assert [entry["verdict"] for entry in journaled(guarded, incident_id, "decided")][-1] == "run"
        assert [entry["outcome"] for entry in journaled(guarded, incident_id, "outcome")] == ["done"]
        assert guarded.metric("mpsguard_remedies_total", remedy="terminate", outcome="done") == 1
        page = tmp_path / "page.html"
        guarded.ctl("incident", "report", incident_id, "--output", str(page))
        for text in (guarded.ctl("incident", "show", incident_id).stdout, page.read_text()):
            assert "terminate: done" in text


def test_observed_it_is_in_the_journal_alone(library: Path) -> None:
    step = '{remedy = "terminate", mode = "observe", at_least = "likely"}'
    with accused(library, step) as (guarded, culprit, incident_id):
        wait_for("the outcome", lambda: remedies(guarded, "outcome"))
        assert [entry["outcome"] for entry in journaled(guarded, incident_id, "outcome")] == ["observed"]
        assert culprit.process.poll() is None
        assert guarded.events("client_terminated") == []


def test_by_default_a_likely_culprit_is_left_alone_and_the_journal_says_why(library: Path) -> None:
    with accused(library, "") as (guarded, culprit, incident_id):
        wait_for("the decision", lambda: remedies(guarded, "decided"))
        assert {entry["verdict"] for entry in journaled(guarded, incident_id, "decided")} == {"decline"}
        assert journaled(guarded, incident_id, "outcome") == []
        assert culprit.process.poll() is None


def test_off_leaves_no_trace(library: Path) -> None:
    with accused(library, '{remedy = "terminate", mode = "off", at_least = "likely"}') as (
        guarded,
        culprit,
        incident_id,
    ):
        assert guarded.json("incident", "show", incident_id)["decisions"] == []
        assert remedies(guarded, "decided") == []
        assert culprit.process.poll() is None
