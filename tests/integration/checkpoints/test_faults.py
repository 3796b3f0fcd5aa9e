"""Copiers that die, hang or meet a failing disk at each step; writers that die; other users' stores."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpsguard.client import Session
from mpsguard.images import checkpoints
from mpsguard.images.checkpoints import copier_process
from mpsguard.images.checkpoints.checkpoint import CheckpointState
from mpsguard.images.checkpoints.checkpoints import Checkpoints
from mpsguard.images.checkpoints.errors import CheckpointRefusedError
from mpsguard.images.checkpoints.messages import CheckpointRefusal
from mpsguard.images.checkpoints.piece_table import CopierStage
from mpsguard.vault.client.mapped import Memory
from tests.harness.waiting import PATIENCE, wait_for
from tests.integration.checkpoints import faulty_copier
from tests.integration.checkpoints.world import PIECE, World, content_of, region

ROOT = Path(__file__).parents[3]
PIECES = 10
RUN = "mpsguard.images.copier.run:CheckpointRun"
STEPS = {
    "setup": "mpsguard.images.copier.process:CopierMain.serve|before|1",
    "cut": "mpsguard.images.copier.process:CopierMain._checkpoint|before|1",
    "regions": "mpsguard.images.copier.opened_regions:OpenedRegions.open|after|1",
    "claim": "mpsguard.images.copier.schedule:Schedule.claim|after|1",
    "copy": "mpsguard.images.copier.sources:HostCopySource.read|after|1",
    "held": "mpsguard.images.copier.schedule:Schedule.held|after|1",
    "told": "mpsguard.images.checkpoints.piece_table:PieceTable.set_copied|after|3",
    "put": "mpsguard.images.store.writer:ImageWriter.put|before|5",
    "stored": "mpsguard.images.copier.schedule:Schedule.stored|after|7",
    "whole": "mpsguard.images.copier.process:CopierMain._is_stale|after|1",
    "commit": "mpsguard.images.store.writer:ImageWriter.commit_held|before|1",
    "committed": "mpsguard.images.store.writer:ImageWriter.commit_held|after|1",
}
ALWAYS = ("setup", "cut", "held", "stored", "commit", "committed")
"""Steps of every run; between them lie those of the campaign."""
TRIED_AGAIN = ("cut", "committed")
"""Steps after which another checkpoint shows that the session is as before; the others differ in nothing then."""


@contextmanager
def with_fault(monkeypatch: pytest.MonkeyPatch, step: str, what: str) -> Iterator[None]:
    """Copiers that are started in this block have the fault."""
    with monkeypatch.context() as patch:
        patch.setattr(copier_process, "MODULE", "tests.integration.checkpoints.faulty_copier")
        patch.setenv(faulty_copier.VARIABLE, f"{STEPS[step]}|{what}")
        patch.setenv("PYTHONPATH", str(ROOT))
        yield


def attempt(session: Session, a: Memory, image: str) -> tuple[bytes, float, str]:
    """Take a checkpoint and write to all of the region at once.

    Returns:
        The region at the cut, the longest time that an announcement took, and what came of it.
    """
    before = content_of(a)
    longest = 0.0
    try:
        checkpoint = checkpoints.of(session).take(image)
    except CheckpointRefusedError as error:
        return before, longest, error.refusal.value
    for at in range(0, a.size, PIECE):
        began = time.monotonic()
        a.writing(at, PIECE)
        longest = max(longest, time.monotonic() - began)
        a.view(at, PIECE).write(os.urandom(PIECE))
    session.publish(b"next")
    try:
        checkpoint.wait(PATIENCE)
    except CheckpointRefusedError as error:
        return before, longest, error.refusal.value
    return before, longest, "committed"


@pytest.mark.slow(seconds=8, reason="a copier process for each step, and a second one for some")
@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=() if step in ALWAYS else pytest.mark.soak) for step in STEPS]
)
def test_a_copier_that_is_killed_holds_nothing_up(world: World, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    with (
        world.session(patience=PATIENCE) as session,
        region(session, "a", os.urandom(PIECES * PIECE)) as a,
    ):
        session.publish(b"1")
        with with_fault(monkeypatch, step, "kill"):
            before, longest, outcome = attempt(session, a, "one")
        assert outcome == CheckpointRefusal.COPIER.value
        assert longest < PATIENCE / 2, "the end of patience ended it"
        # Killed behind the commit: the image is there, though the writer could not be told.
        assert world.names() == (["one"] if step == "committed" else [])
        if step == "committed":
            assert world.image("one") == {"a": before}
        if step in TRIED_AGAIN:
            before, _, outcome = attempt(session, a, "one")
            assert outcome == "committed"
            assert world.image("one") == {"a": before}


def test_an_armed_checkpoint_is_refused_once_its_copier_cannot_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each publication looks for the copier: it must not start one more each time."""
    with world.session() as session, region(session, "a", bytes(PIECE)):
        taking = checkpoints.of(session)
        with with_fault(monkeypatch, "setup", "kill"):
            checkpoint = taking.arm("one")
            session.publish(b"1")
            first = taking._copier
            assert first is not None
            first.wait(PATIENCE)
            session.publish(b"2")
        assert checkpoint.ended is not None
        assert checkpoint.ended.refusal is CheckpointRefusal.COPIER
        assert taking._copier is None
        session.publish(b"3")
        checkpoints.of(session).take("two").wait(PATIENCE)
        assert world.names() == ["two"]


@pytest.mark.parametrize("step", ["held", pytest.param("claim", marks=pytest.mark.soak)])
def test_a_copier_that_hangs_is_given_up_by_a_program_that_waits(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with (
        world.session(patience=0.3, deadline=PATIENCE) as session,
        region(session, "a", os.urandom(PIECES * PIECE)) as a,
    ):
        session.publish(b"1")
        with with_fault(monkeypatch, step, "stop"):
            _, longest, outcome = attempt(session, a, "one")
        assert outcome == CheckpointRefusal.CANCELLED.value
        assert longest < PATIENCE / 2, "the deadline ended it"
        assert world.names() == []


def test_a_copier_that_hangs_when_all_is_copied_is_given_up_at_the_deadline(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        world.session(patience=PATIENCE, deadline=1.0) as session,
        region(session, "a", os.urandom(PIECES * PIECE)) as a,
    ):
        session.publish(b"1")
        with with_fault(monkeypatch, "put", "stop"):
            _, _, outcome = attempt(session, a, "one")
        assert outcome == CheckpointRefusal.CANCELLED.value
        assert world.names() == []


@pytest.mark.parametrize(
    ("step", "stage"),
    [("put", CopierStage.COPYING), ("whole", CopierStage.CHECKING), ("commit", CopierStage.COMMITTING)],
)
def test_a_copier_that_hangs_says_where(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str, stage: CopierStage
) -> None:
    with world.session() as session, region(session, "a", os.urandom(PIECES * PIECE)):
        session.publish(b"1")
        with with_fault(monkeypatch, step, "stop"):
            checkpoint = checkpoints.of(session).take("one")
        wait_for("the copier to stop", lambda: is_stopped(checkpoints.of(session)))
        found = checkpoint.progress()
        assert found is not None
        assert (found.stage, found.pieces) == (stage, PIECES)
        if stage is CopierStage.COPYING:
            # It stopped in the fifth call that stores a piece; other threads may have stored one more until then.
            assert found.stored < PIECES
            # Threads that store give way to others.
            own = os.getpriority(os.PRIO_PROCESS, 0)
            assert nicenesses(checkpoints.of(session)) == {own, own + 5}
        else:
            assert (found.copied, found.stored) == (PIECES, PIECES)
        with pytest.raises(TimeoutError, match=re.escape(str(found))):
            checkpoint.wait(0.01)
    assert checkpoint.progress() is None


def test_one_thread_waits_and_another_one_announces(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copier hangs, so that both wait for it at once."""
    with world.session(patience=0.5) as session, region(session, "a", os.urandom(PIECES * PIECE)) as a:
        session.publish(b"1")
        with with_fault(monkeypatch, "cut", "stop"):
            checkpoint = checkpoints.of(session).take("one")
        wait_for("the copier to stop", lambda: is_stopped(checkpoints.of(session)))
        with ThreadPoolExecutor(2) as threads:
            waiting = [threads.submit(checkpoint.wait, PATIENCE) for _ in range(2)]
            a.writing()
        for each in waiting:
            with pytest.raises(CheckpointRefusedError, match="held the program"):
                each.result()


def test_a_write_that_is_not_announced_tears_the_pieces_that_are_not_copied_yet(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.session(retries=0) as session, region(session, "a", b"a" * PIECES * PIECE) as a:
        session.publish(b"1")
        with with_fault(monkeypatch, "claim", "stop"):
            checkpoint = checkpoints.of(session).take("one")
        wait_for("the copier to stop", lambda: is_stopped(checkpoints.of(session)))
        for number in range(PIECES):
            a.view(number * PIECE, 1).write(b"b")
        copier = checkpoints.of(session)._copier
        assert copier is not None
        os.kill(copier.pid, signal.SIGCONT)
        with pytest.raises(CheckpointRefusedError) as refused:
            checkpoint.wait(PATIENCE)
        assert refused.value.refusal is CheckpointRefusal.TORN
        assert world.names() == []


def is_stopped(checkpoints: Checkpoints) -> bool:
    copier = checkpoints._copier
    return copier is not None and ") T " in Path(f"/proc/{copier.pid}/stat").read_text()


def nicenesses(checkpoints: Checkpoints) -> set[int]:
    copier = checkpoints._copier
    assert copier is not None
    return {os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir(f"/proc/{copier.pid}/task")}


@pytest.mark.parametrize(("step", "what"), [("put", "ENOSPC"), ("commit", "EIO"), ("copy", "EIO")])
def test_a_disk_or_memory_that_fails_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str, what: str
) -> None:
    with world.session() as session, region(session, "a", os.urandom(PIECES * PIECE)) as a:
        session.publish(b"1")
        with with_fault(monkeypatch, step, what):
            _, _, outcome = attempt(session, a, "one")
        assert outcome == CheckpointRefusal.MEMORY.value
        assert world.names() == []
        # The same copier goes on.
        before, _, outcome = attempt(session, a, "one")
        assert outcome == "committed"
        assert world.image("one") == {"a": before}


def test_a_store_that_is_full_keeps_the_image_it_has(world: World) -> None:
    with (
        world.session(quota=PIECES * PIECE + PIECE // 2) as session,
        region(session, "a", os.urandom(PIECES * PIECE)) as a,
    ):
        session.publish(b"1")
        before, _, outcome = attempt(session, a, "one")
        assert outcome == "committed"
        assert attempt(session, a, "one")[2] == CheckpointRefusal.STORE.value
        assert world.image("one") == {"a": before}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a directory of another user")
def test_another_users_store_is_refused(world: World) -> None:
    world.store.mkdir(mode=0o700)
    os.chown(world.store, 12345, 12345)
    with world.session() as session, region(session, "a", os.urandom(PIECE)) as a:
        session.publish(b"1")
        assert attempt(session, a, "one")[2] == CheckpointRefusal.STORE.value


def test_a_store_that_cannot_be_made_is_told(world: World) -> None:
    world.store.write_text("no directory")
    with world.session() as session, region(session, "a", os.urandom(PIECE)) as a:
        session.publish(b"1")
        assert attempt(session, a, "one")[2] == CheckpointRefusal.STORE.value
        # The same copier uses it as soon as it can be made, also another time.
        copier = checkpoints.of(session)._copier
        for name in ("two", "three"):
            world.store.unlink() if world.store.is_file() else shutil.rmtree(world.store)
            before, _, outcome = attempt(session, a, name)
            assert (outcome, world.image(name)) == ("committed", {"a": before})
        assert checkpoints.of(session)._copier is copier


WRITER = """
import os, sys
from mpsguard.client import Session
from mpsguard.images import checkpoints
from mpsguard.vault.client.mapped import HostBackend, create
session = Session("s", socket=sys.argv[1], keep=60)
memory = create(session, HostBackend(), "a", 40 << 20)
memory.view().write(os.urandom(40 << 20))
session.publish(b"1")
checkpoints.of(session, store=sys.argv[2], buffers=64 << 20)
checkpoints.of(session).take("first").wait(60)
memory.writing()
memory.view().write(os.urandom(40 << 20))
print("cut", checkpoints.of(session)._copier.pid, flush=True)
checkpoints.of(session).take("second")
sys.stdin.read()
"""


@pytest.mark.parametrize("delay", [0.0, pytest.param(0.05, marks=pytest.mark.soak)])
def test_a_writer_that_is_killed_takes_its_copier_with_it(world: World, delay: float) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, world.vault.socket, str(world.store)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    word, pid = child.stdout.readline().split()
    assert word == "cut"
    time.sleep(delay)  # a random moment of the checkpoint, not a wait
    child.send_signal(signal.SIGKILL)
    child.communicate()
    wait_for("the copier to end", lambda: not Path(f"/proc/{pid}").exists() or is_zombie(int(pid)))
    assert world.names()[:1] == ["first"]
    for name in world.names():
        world.image(name)
    # Its lease has ended, too.
    with world.vault.session() as session:
        assert session.state() == b"1"


def test_a_store_is_where_it_was_when_it_was_named(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(world.store.parent)
    with world.session(store=world.store.name) as session, region(session, "a", os.urandom(PIECE)) as a:
        session.publish(b"1")
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        monkeypatch.chdir(elsewhere)
        before, _, outcome = attempt(session, a, "one")
    assert (outcome, world.image("one"), os.listdir(elsewhere)) == ("committed", {"a": before}, [])


FORKED = WRITER.replace(
    'checkpoints.of(session).take("second")',
    "forked = os.fork()\nif not forked:\n    os.close(1)\n    sys.stdin.read()\n    os._exit(0)\n"
    "os.kill(os.getpid(), 9)",
)
"""It has a child without exec, as a loader of data is one, which has the sockets of the writer."""


def test_a_writer_that_is_killed_takes_its_copier_with_it_though_a_child_lives(world: World) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FORKED, world.vault.socket, str(world.store)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        pid = int(child.stdout.readline().split()[1])
        assert child.wait() == -signal.SIGKILL
        wait_for("the copier to end", lambda: not Path(f"/proc/{pid}").exists() or is_zombie(pid))


def test_the_copier_imports_nothing_from_the_working_directory(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It may be one in which another user can put files."""
    (tmp_path / "msgspec.py").write_text("raise SystemExit(77)")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    with world.session() as session, region(session, "a", os.urandom(PIECE)):
        session.publish(b"1")
        checkpoints.of(session).take("one").wait(PATIENCE)


def is_zombie(pid: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def test_a_fenced_writers_checkpoint_is_not_committed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends after another process has become the writer: an older image must not take the place of a newer one."""
    with world.session() as session, region(session, "a", os.urandom(PIECES * PIECE)) as a:
        session.publish(b"1")
        key = next(iter(world.vault.vault.store.sessions))
        checkpoint = checkpoints.of(session).take("one")
        world.vault.call(lambda: world.vault.vault.fence(key))
        with pytest.raises(CheckpointRefusedError) as refused:
            checkpoint.wait(PATIENCE)
        assert refused.value.refusal is CheckpointRefusal.STALE
        assert checkpoint.state is CheckpointState.REFUSED
        assert world.names() == []
        assert a.size
