"""A defect of the guard costs what it was doing and nothing else, and an operator gets its traceback."""

import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

from tests.harness.guard_process import GuardProcess
from tests.harness.waiting import PATIENCE, wait_for
from tests.harness.whole_lines import whole_lines
from tests.integration.guarded import Guarded


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with Guarded() as running:
        running.process = GuardProcess(running.config, running.root, module="tests.integration.sim.defective_guard")
        running.start()
        yield running


def logged(guarded: Guarded) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in whole_lines(guarded.process.log)]
    return [entry for entry in entries if entry["event"] == "internal_error"]


def status_of(guarded: Guarded, path: str) -> int:
    connection = HTTPConnection("localhost", timeout=PATIENCE)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(PATIENCE)
    connection.sock.connect(str(guarded.run_directory / "http.sock"))
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_command_that_raises_is_answered_and_its_traceback_logged(guarded: Guarded) -> None:
    assert guarded.ctl("metrics").returncode == 1
    wait_for("the event", lambda: guarded.events("internal_error"))
    (entry,) = logged(guarded)
    assert entry["level"] == "error"
    assert "defective_guard.py" in entry["exception"]
    assert "ZeroDivisionError" in entry["exception"]


def test_a_page_that_raises_is_500_and_its_traceback_logged(guarded: Guarded) -> None:
    assert status_of(guarded, "/livez") == 500
    wait_for("the event", lambda: guarded.events("internal_error"))
    (entry,) = logged(guarded)
    assert "defective_guard.py" in entry["exception"]


def test_the_log_is_bounded_and_the_guard_serves_on(guarded: Guarded) -> None:
    for _ in range(30):
        assert status_of(guarded, "/livez") == 500
    wait_for("the events", lambda: len(guarded.events("internal_error")) == 10)
    assert status_of(guarded, "/readyz") == 500
    assert len(logged(guarded)) == 10
    assert guarded.lane_in("ACTIVE")
