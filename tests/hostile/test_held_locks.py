"""Users that hold the lock of what they can open in the guard's directories: a system call of theirs never returns."""

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mpsguard.linux.processes import procfs
from mpsguard.linux.sockets.listens import listens
from tests.harness.stopped import stopped
from tests.harness.waiting import wait_for
from tests.hostile.attacker import UID, attack
from tests.hostile.attacks import HELD_LOCKS
from tests.hostile.stalled_files import StalledFiles
from tests.integration.guarded import Guarded, Program
from tests.integration.peer import Peer

pytestmark = [
    pytest.mark.slow(seconds=45, reason="attacks a real guard"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no FUSE here"),
]

END_WITHIN = 30.0
"""Seconds for the guard's end, which never comes if it waits for a lock."""

HOLD = f"""
{HELD_LOCKS}
tell("tried", held={{path: held(path) for path in sys.argv[3:]}})
signal.pause()
"""


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with Guarded() as guarded:
        yield guarded


def hold(guarded: Guarded, stalled: StalledFiles, *paths: Path, uid: int = UID) -> dict[str, str]:
    """A stranger takes the locks of these paths if it can; what came of each. It holds them from then on."""
    attacker: Program = attack(guarded, HOLD, str(stalled.file), *map(str, paths), uid=uid)
    told: dict[str, str] = attacker.expect("tried")["held"]
    if "held" in told.values():
        assert stalled.asked.wait(30), "the call that holds the lock has not begun"
    return {Path(path).name: what for path, what in told.items()}


def serves_and_ends(guarded: Guarded) -> None:
    with Peer(guarded.public) as good:
        assert good.connect_as_client()
    assert guarded.asked("status")
    ends(guarded)


def ends(guarded: Guarded) -> None:
    guarded.guard.terminate()
    assert guarded.guard.wait(END_WITHIN) == 0


def test_no_fifo_of_the_guards_can_be_held(guarded: Guarded, stalled: StalledFiles) -> None:
    guarded.start()
    assert hold(guarded, stalled, guarded.public / "log") == {"log": "FileNotFoundError"}
    serves_and_ends(guarded)
    guarded.start()
    serves_and_ends(guarded)


def test_a_fifo_that_a_stock_daemon_has_left_is_held(guarded: Guarded, stalled: StalledFiles) -> None:
    guarded.public.mkdir()
    os.mkfifo(guarded.public / "log")
    (guarded.public / "log").chmod(0o777)
    assert hold(guarded, stalled, guarded.public / "log") == {"log": "held"}
    guarded.start()
    serves_and_ends(guarded)


def test_the_lock_of_the_directory_cannot_be_held(guarded: Guarded, stalled: StalledFiles) -> None:
    guarded.start()
    assert hold(guarded, stalled, guarded.public / "control_lock") == {"control_lock": "PermissionError"}
    ends(guarded)
    guarded.start()
    serves_and_ends(guarded)


def test_the_lock_that_a_stock_daemon_has_left_is_held(guarded: Guarded, stalled: StalledFiles) -> None:
    guarded.public.mkdir()
    lock = guarded.public / "control_lock"
    lock.touch()
    lock.chmod(0o666)
    guarded.start()
    assert hold(guarded, stalled, lock) == {"control_lock": "held"}
    serves_and_ends(guarded)
    guarded.start()
    serves_and_ends(guarded)


def test_the_pid_file_that_a_stock_daemon_has_left_is_held(guarded: Guarded, stalled: StalledFiles) -> None:
    """That of 550 makes it 0666, and leaves it when it is killed."""
    guarded.public.mkdir()
    pid_file = guarded.public / "nvidia-cuda-mps-control.pid"
    pid_file.write_text("1")
    pid_file.chmod(0o666)
    assert hold(guarded, stalled, pid_file) == {pid_file.name: "held"}
    guarded.start()
    serves_and_ends(guarded)


def test_with_sockets_from_the_service_manager_the_lock_of_the_public_directory_is_not_needed(
    guarded: Guarded, stalled: StalledFiles
) -> None:
    """Root of a container that has the directory mounted can list it."""
    guarded.hold_sockets()
    guarded.start()
    assert hold(guarded, stalled, guarded.public, uid=0) == {"mps": "held"}
    serves_and_ends(guarded)
    guarded.start()
    serves_and_ends(guarded)


@pytest.mark.parametrize("directory", ["public", "run", "lanes", "state", "log", "lane_log"])
def test_no_directory_of_the_guards_can_be_held(guarded: Guarded, stalled: StalledFiles, directory: str) -> None:
    places = {
        "public": guarded.public,
        "run": guarded.run_directory,
        "lanes": guarded.run_directory / "lanes",
        "state": guarded.root / "state",
        "log": guarded.root / "log",
        "lane_log": guarded.log,
    }
    # As an earlier version, or an administrator, made them.
    guarded.public.mkdir(mode=0o755)
    guarded.run_directory.mkdir(mode=0o755)
    (guarded.root / "state").mkdir(mode=0o755)
    guarded.start()
    assert set(hold(guarded, stalled, places[directory]).values()) == {"PermissionError"}
    ends(guarded)
    guarded.start()
    serves_and_ends(guarded)


def test_a_directory_that_was_open_before_the_guard_narrows_it_is_held(guarded: Guarded, stalled: StalledFiles) -> None:
    """What the page on security says of it: the guard waits at its start, and the file system's end lets it go on."""
    guarded.public.mkdir(mode=0o755)
    guarded.public.chmod(0o755)
    assert hold(guarded, stalled, guarded.public) == {"mps": "held"}
    with ThreadPoolExecutor() as pool:
        ready = pool.submit(guarded.start)
        wait_for("it waits", lambda: guarded.process.runs and procfs.state(guarded.guard.pid) == "D")
        stalled.close()
        ready.result()
    serves_and_ends(guarded)


@pytest.fixture
def listed(guarded: Guarded) -> Path:
    """A directory that every user may list, with the public one in it and nothing else of the guard's or the test's."""
    listed = guarded.root / "listed"
    listed.mkdir(mode=0o755)
    guarded.public = listed / "mps"
    guarded.environment["CUDA_MPS_PIPE_DIRECTORY"] = str(guarded.public)
    guarded.write_config()
    return listed


def test_a_directory_above_that_every_user_may_list_is_not_needed(
    guarded: Guarded, stalled: StalledFiles, listed: Path
) -> None:
    guarded.start()
    assert hold(guarded, stalled, listed) == {"listed": "held"}
    serves_and_ends(guarded)
    guarded.start()
    serves_and_ends(guarded)


def test_one_in_which_a_directory_is_made_again_is_waited_for_on_a_thread(
    guarded: Guarded, stalled: StalledFiles, listed: Path
) -> None:
    pid = guarded.start()
    with stopped(pid):
        shutil.rmtree(guarded.public)
        (listed / "other").touch()
        assert hold(guarded, stalled, listed) == {"listed": "held"}
    threads = Path(f"/proc/{pid}/task")
    wait_for("a thread waits", lambda: "D" in [procfs.state(int(thread)) for thread in os.listdir(threads)])
    wait_for("the problem", lambda: any(str(guarded.public) in each for each in guarded.asked("status")["problems"]))
    stalled.close()
    # It is there a moment before it listens.
    wait_for("its socket", lambda: listens(guarded.public / "control"))
    serves_and_ends(guarded)
