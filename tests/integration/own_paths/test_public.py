"""The public directory of a running guard, in every way: made again, or said to be gone by all that can be asked."""

from __future__ import annotations

import html
import http.client
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.free_port import free_port
from tests.harness.waiting import PATIENCE, wait_for
from tests.integration.ctl_in_process import done_by
from tests.integration.guarded import Guarded
from tests.integration.own_paths.mounts import in_own_namespace
from tests.integration.own_paths.shared import SharedGuards
from tests.integration.own_paths.ways import LEFT, LEFT_BY_ROOT, MENDED, MENDED_BY_ROOT, Way

pytestmark = pytest.mark.slow(seconds=180, reason="a guard for each way")

IS_ROOT = os.geteuid() == 0
SOCKETS = pytest.mark.parametrize("held", [False, True], ids=["own", "held"])
MODES = {".": 0o711, "control": 0o666, "control_privileged": 0o755, "control_lock": 0o600}


def ways(for_all: tuple[Way, ...], for_root: tuple[Way, ...]) -> pytest.MarkDecorator:
    root = [pytest.param(way, marks=pytest.mark.root, id=way.name) for way in for_root if IS_ROOT]
    return pytest.mark.parametrize("way", [*(pytest.param(way, id=way.name) for way in for_all), *root])


def run(way: Way, body: Callable[[], None]) -> None:
    if way.mounts:
        in_own_namespace(body)
    else:
        body()


def modes(public: Path) -> dict[str, int]:
    return {name: stat.S_IMODE((public / name).lstat().st_mode) for name in MODES}


def has_mps(guarded: Guarded) -> bool:
    """Whether a program that starts now runs under the guard's MPS."""
    with_mps: bool = guarded.client("--seconds", "0.1").expect("connected", "bare")["mps"]
    return with_mps


def mended_so_far(guarded: Guarded) -> int:
    """How often something was mended in the public directory."""
    return sum(Path(each["data"]["path"]) == guarded.public for each in guarded.events("path_mended"))


def mended(guarded: Guarded, before: int) -> None:
    """Wait until something was mended there, after so often before."""
    wait_for("the public directory made again", lambda: mended_so_far(guarded) > before)


def page(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def check(guarded: Guarded, purpose: str) -> int:
    return done_by(str(guarded.run_directory), "check", "--for", purpose).returncode


@contextmanager
def one_for(way: Way, guards: SharedGuards, kind: object, start: Callable[[Guarded], None]) -> Iterator[Guarded]:
    """A guard for this way: one of its own where it lives in a mount namespace that ends with the test."""
    if way.mounts:
        with Guarded() as guarded:
            start(guarded)
            yield guarded
    else:
        with guards.of(kind, start) as guarded:
            yield guarded


@SOCKETS
@ways(MENDED, MENDED_BY_ROOT)
def test_it_is_made_again(guards: SharedGuards, way: Way, held: bool) -> None:
    def start(guarded: Guarded) -> None:
        if held:
            guarded.hold_sockets()
        guarded.start()

    def body() -> None:
        with one_for(way, guards, ("made again", held), start) as guarded:
            assert has_mps(guarded)
            before = mended_so_far(guarded)
            way.to(guarded.public, guarded.guard.pid)
            mended(guarded, before)
            assert has_mps(guarded)
            found = guarded.public.resolve().stat()
            assert (found.st_uid, modes(guarded.public.resolve())) == (os.geteuid(), MODES)
            status = guarded.json("status")
            assert (status["health"], status["problems"]) == ("healthy", [])
            assert guarded.metric("mpsguard_path_intact", path=str(guarded.public)) == 1
            # The next guard, which is the next test's, finds it as this one left it.
            guarded.kill()
            guarded.start()
            assert has_mps(guarded)
            assert guarded.json("status")["health"] == "healthy"

    run(way, body)


@SOCKETS
@ways(LEFT, LEFT_BY_ROOT)
def test_what_may_not_be_touched_is_told_by_all_that_can_be_asked(guards: SharedGuards, way: Way, held: bool) -> None:
    def start(guarded: Guarded) -> None:
        guarded.config.write_text(guarded.config.read_text().replace('"off"', f'"127.0.0.1:{free_port()}"'))
        if held:
            guarded.hold_sockets()
        guarded.start()

    def body() -> None:
        with one_for(way, guards, ("told", held), start) as guarded:
            served = re.search(r'"127\.0\.0\.1:(\d+)"', guarded.config.read_text())
            assert served is not None
            port = int(served[1])
            before, lost = mended_so_far(guarded), len(guarded.events("path_lost"))
            way.to(guarded.public, guarded.guard.pid)
            status = wait_for("the problem", lambda: found if (found := guarded.json("status"))["problems"] else None)
            assert status["health"] == "degraded"
            (problem,) = status["problems"]
            assert "without MPS" in problem
            assert str(guarded.public) in problem
            assert done_by(str(guarded.run_directory), "status").returncode == 3
            assert [check(guarded, purpose) for purpose in ("live", "ready", "slurm", "npd")] == [0, 1, 1, 1]
            assert page(port, "/readyz")[0] == 503
            wait_for("the page", lambda: problem in html.unescape(page(port, "/")[1]))
            assert guarded.metric("mpsguard_path_intact", path=str(guarded.public)) == 0
            (event,) = guarded.events("path_lost")[lost:]
            assert event["data"]["keeps_out"]
            doctor = guarded.ctl("doctor", "--config", str(guarded.config), "--json")
            assert doctor.returncode == 3
            assert ("problem", problem) in [(each["grade"], each["text"]) for each in json.loads(doctor.stdout)]
            assert way.undo is not None
            way.undo(guarded.public)
            mended(guarded, before)
            assert has_mps(guarded)
            wait_for("its health", lambda: guarded.json("status")["health"] == "healthy")

    run(way, body)
