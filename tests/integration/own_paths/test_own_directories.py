"""The run, state and log directories of a running guard: made again, or told by health and events."""

from __future__ import annotations

import os
import shutil
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.stopped import stopped
from tests.harness.waiting import wait_for
from tests.integration.ctl_in_process import done_by
from tests.integration.guarded import Guarded
from tests.integration.own_paths import mounts
from tests.integration.own_paths.shared import SharedGuards

pytestmark = pytest.mark.slow(seconds=60, reason="a guard for each way")

SOCKETS = ("api.sock", "events.sock", "http.sock", "vault.sock")


def reached(guarded: Guarded) -> bool:
    try:
        guarded.asked("status")
    except OSError:
        return False
    return True


def healthy(guarded: Guarded) -> None:
    wait_for("the API", lambda: reached(guarded))
    wait_for("its health", lambda: guarded.asked("status")["health"] == "healthy")


def problems(guarded: Guarded) -> list[str]:
    found: list[str] = guarded.asked("status")["problems"]
    return found


def mended_so_far(guarded: Guarded, path: Path) -> int:
    return sum(each["data"]["path"] == str(path) for each in guarded.events("path_mended"))


def mended(guarded: Guarded, path: Path, before: int = 0) -> None:
    wait_for(f"{path} made again", lambda: mended_so_far(guarded, path) > before)


@pytest.mark.parametrize("name", SOCKETS)
@pytest.mark.parametrize("change", ["removed", "closed", "renamed"])
def test_a_socket_of_the_run_directory_is_made_again(guards: SharedGuards, name: str, change: str) -> None:
    # The guard that a test starts in the end is the next test's.
    with guards.of("sockets", lambda guarded: guarded.start()) as guarded:
        path = guarded.run_directory / name
        before, already = path.stat(), mended_so_far(guarded, path)
        if change == "closed":
            path.chmod(0)
        elif change == "renamed":
            path.rename(path.with_name("other"))
        else:
            path.unlink()
        wait_for("the socket", path.exists)
        healthy(guarded)
        mended(guarded, path, already)
        assert (path.stat().st_mode, path.stat().st_uid) == (before.st_mode, before.st_uid)
        assert done_by(str(guarded.run_directory), "vault", "list").returncode == 0
        guarded.kill()
        guarded.start()
        healthy(guarded)


def test_the_run_directory_is_closed_and_opened_again() -> None:
    with Guarded() as guarded:
        guarded.start()
        guarded.run_directory.chmod(0)
        wait_for("its mode", lambda: stat.S_IMODE(guarded.run_directory.stat().st_mode) == 0o711)
        healthy(guarded)


@pytest.mark.parametrize("happens", [shutil.rmtree, lambda path: path.rename(path.with_name("old"))])
@pytest.mark.parametrize("which", ["state", "state/lanes", "state/journal.sqlite"])
def test_what_is_kept_is_written_again(which: str, happens: Callable[[Path], object]) -> None:
    with Guarded() as guarded:
        guarded.start()
        guarded.ui("set_default_active_thread_percentage 40")
        settings = guarded.root / "state" / "lanes" / "default-0.json"
        kept = wait_for("the setting", lambda: settings.exists() and settings.read_bytes())
        # All paths are looked at in one round: the guard has seen the file when it has mended something.
        (guarded.run_directory / "http.sock").chmod(0)
        mended(guarded, guarded.run_directory / "http.sock")
        path = guarded.root / which
        with stopped(guarded.guard.pid):
            if path.is_dir() or happens is not shutil.rmtree:
                happens(path)
            else:
                path.unlink()
        mended(guarded, path)
        # Paths are mended one after another: the directory first, then what lies in it.
        wait_for("the setting again", lambda: settings.exists() and settings.read_bytes() == kept)
        healthy(guarded)
        # An incident is in the new journal, and found by the next guard.
        os.kill(guarded.lane()["control"]["pid"], signal.SIGKILL)
        wait_for("the incident", lambda: guarded.asked("incidents")["incidents"])
        guarded.lane_in("ACTIVE")
        guarded.stop()
        guarded.start()
        assert guarded.asked("incidents")["incidents"]
        assert guarded.ui("get_default_active_thread_percentage").stdout == "40.0\n"


@pytest.mark.parametrize("which", ["run", "run/lanes", "run/lanes/default-0/pipe"])
@pytest.mark.parametrize("happens", [shutil.rmtree, lambda path: path.rename(path.with_name("old"))])
def test_a_lane_without_its_directory_is_started_anew(which: str, happens: Callable[[Path], object]) -> None:
    with Guarded() as guarded:
        guarded.start()
        before = guarded.lane()["control"]
        with stopped(guarded.guard.pid):
            happens(guarded.root / which)
        wait_for("another control daemon", lambda: reached(guarded) and guarded.lane()["control"] not in (None, before))
        healthy(guarded)
        assert guarded.client("--seconds", "0.1").expect("connected", "bare")["mps"]


def test_a_lane_with_clients_goes_on_until_they_have_ended() -> None:
    with Guarded() as guarded:
        guarded.start()
        client = guarded.client()
        client.expect("started")
        before = guarded.lane()["control"]
        with stopped(guarded.guard.pid):
            shutil.rmtree(guarded.pipe)
        problem = wait_for(
            "the problem",
            lambda: next((each for each in guarded.asked("status")["problems"] if "without MPS" in each), None),
        )
        assert str(guarded.pipe) in problem
        assert [guarded.ctl("check", "--for", purpose).returncode for purpose in ("ready", "slurm", "npd")] == [1, 1, 1]
        # It has its socket to the server, and is at work.
        assert client.silent()
        assert guarded.lane()["control"] == before
        client.process.terminate()
        assert client.wait() == 0
        wait_for("another control daemon", lambda: guarded.lane()["control"] not in (None, before))
        healthy(guarded)
        assert guarded.client("--seconds", "0.1").expect("connected", "bare")["mps"]


@pytest.mark.parametrize("happens", [shutil.rmtree, lambda path: path.rename(path.with_name("old"))])
def test_a_lanes_log_directory_is_made_again(happens: Callable[[Path], object]) -> None:
    with Guarded() as guarded:
        guarded.start()
        with stopped(guarded.guard.pid):
            happens(guarded.log)
        mended(guarded, guarded.log)
        assert stat.S_IMODE(guarded.log.stat().st_mode) == 0o711
        healthy(guarded)


def test_the_directory_for_core_files_is_told_to_be_gone_until_a_restart() -> None:
    with Guarded() as guarded:
        cores = guarded.root / "cores"
        text = guarded.config.read_text()
        guarded.config.write_text(text.replace("[guard]\n", f'[guard]\ncore_directory = "{cores}"\n', 1))
        guarded.start()
        cores.chmod(0o755)
        wait_for("its mode", lambda: stat.S_IMODE(cores.stat().st_mode) == 0o1733)
        healthy(guarded)
        cores.rmdir()
        wait_for("the problem", lambda: any(str(cores) in each for each in problems(guarded)))
        cores.mkdir()
        assert any(str(cores) in each for each in problems(guarded))
        guarded.stop()
        guarded.start()
        healthy(guarded)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems")
@pytest.mark.parametrize(
    ("options", "word"), [("size=64k,mode=0700", "no room"), ("ro,mode=0700", "read-only")], ids=["full", "read-only"]
)
@pytest.mark.parametrize("which", ["state", "log/default-0"])
def test_a_full_or_read_only_file_system_is_a_problem_until_it_is_none(which: str, options: str, word: str) -> None:
    def body() -> None:
        with Guarded() as guarded:
            guarded.start()
            path = guarded.root / which
            mounts.tmpfs(path, options)
            wait_for("the problem", lambda: any(f"{path} " in each and word in each for each in problems(guarded)))
            # Clients are served all the same.
            assert "without MPS" not in "".join(problems(guarded))
            assert guarded.ctl("check", "--for", "slurm").returncode == 0
            mounts.unmount(path)
            healthy(guarded)

    mounts.in_own_namespace(body)
