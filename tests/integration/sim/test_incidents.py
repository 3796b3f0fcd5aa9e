"""From a fault to a told incident, through the whole guard, over the simulated stack."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded
from tests.integration.sim.stopped_readers import stopped_readers


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with Guarded() as running:
        running.start()
        yield running


def incidents(guarded: Guarded) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = guarded.json("incidents")["incidents"]
    return found


@pytest.mark.parametrize(("fault", "error"), [("trap", 719), ("null", 700)])
def test_a_server_s_fault_has_candidates_no_culprit_and_without_the_driver_s_word_no_kind(
    guarded: Guarded, fault: str, error: int
) -> None:
    innocents = [guarded.client() for _ in range(2)]
    for innocent in innocents:
        innocent.expect("started")
    culprit = guarded.client("--fault", fault, "--after", "0.1")
    assert culprit.expect("died")["error"] == error
    (incident,) = wait_for("an incident", lambda: incidents(guarded))
    assert (incident["fault_class"], incident["confidence"], incident["culprit"]) == ("mmu_or_sm", "unknown", None)
    assert {suspect["pid"] for suspect in incident["candidates"]} == {culprit.pid, *(one.pid for one in innocents)}
    assert guarded.events("incident")[0]["data"]["id"] == incident["id"]
    wait_for("the count", lambda: guarded.metric("mpsguard_incidents_total", fault_class="mmu_or_sm") == 1)


def test_a_crash_with_work_in_flight_is_named_and_its_victims_are(guarded: Guarded) -> None:
    innocent = guarded.client()
    innocent.expect("started")
    killed = guarded.client("--fault", "kill", "--after", "0.1")
    assert innocent.expect("died")["error"] == 700
    told = wait_for(
        "the verdict", lambda: [e["data"] for e in guarded.events("incident") if e["data"]["work_in_flight"]]
    )
    assert (told[-1]["fault_class"], told[-1]["culprit"]) == ("process", killed.pid)
    assert told[-1]["victims"] == [innocent.pid]


def test_clients_of_which_the_guard_has_yet_to_read_are_victims_and_culprits(guarded: Guarded) -> None:
    """As on a busy machine, or where a process lets a reader wait."""
    guarded.client("--iterations", "3").wait()
    with stopped_readers(guarded.guard.pid):
        innocent = guarded.client()
        innocent.expect("started")
        killed = guarded.client("--fault", "kill", "--after", "0.1")
        killed.wait()
        assert innocent.expect("died")["error"] == 700
    (told,) = wait_for(
        "the verdict", lambda: [each for each in incidents(guarded) if each["culprit"] and each["victims"]]
    )
    assert (told["culprit"]["pid"], [each["pid"] for each in told["victims"]]) == (killed.pid, [innocent.pid])


def test_an_orderly_end_is_no_incident_and_a_crash_while_idle_has_no_victims(guarded: Guarded) -> None:
    guarded.client("--iterations", "3").wait()
    crashed = guarded.client("--fault", "killidle", "--after", "0.1")
    crashed.wait()
    told = wait_for(
        "the verdict", lambda: [e["data"] for e in guarded.events("incident") if e["data"]["work_in_flight"] is False]
    )
    assert (told[-1]["culprit"], told[-1]["victims"]) == (crashed.pid, [])
    assert len(incidents(guarded)) == 1


def test_incidents_outlive_the_guard_and_can_be_shown_exported_and_drawn(guarded: Guarded, tmp_path: Path) -> None:
    none_yet = guarded.ctl("incident", "show", "latest")
    assert (none_yet.returncode, none_yet.stderr) == (1, "mpsguard-ctl: incident: there was no incident yet\n")
    guarded.client("--fault", "killidle").wait()
    (incident,) = wait_for("an incident", lambda: incidents(guarded))
    guarded.kill()
    guarded.start()
    assert [kept["id"] for kept in incidents(guarded)] == [incident["id"]]
    assert incident["id"] in guarded.ctl("incident", "show", incident["id"]).stdout
    assert guarded.ctl("incident", "export", incident["id"], "--output", str(tmp_path / "bundle.json")).returncode == 0
    bundle = json.loads((tmp_path / "bundle.json").read_bytes())
    assert bundle["record"]["id"] == incident["id"]
    assert bundle["evidence"]
    assert guarded.ctl("incident", "report", incident["id"], "--output", str(tmp_path / "page.html")).returncode == 0
    assert "<svg" in (tmp_path / "page.html").read_text()
    assert guarded.ctl("incident", "show", "nothing").returncode == 1


def test_status_says_which_sensors_are_there(guarded: Guarded) -> None:
    sensors = {sensor["name"]: sensor for sensor in guarded.json("status")["sensors"]}
    assert sensors["procs"]["present"]
    assert sensors["serverlog default-0"]["present"]
    assert all(sensor["detail"] for sensor in sensors.values())
