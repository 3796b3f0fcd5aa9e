"""A session moves to another one, as to another GPU: its program goes on here or there, never twice and never nowhere.

No GPU: memfds stand for the memory of both GPUs; vault, processes, images and kills are real.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from mpsguard.client import LeaseRole, Session, StaleGenerationError, UnknownSessionError
from mpsguard.images import checkpoints
from mpsguard.images.checkpoints.handover import HOLD
from mpsguard.images.migration.incoming import IncomingMemory
from mpsguard.images.migration.receive import MigrationError, receive
from mpsguard.images.store.errors import ForeignStoreError
from mpsguard.images.store.manifest import Manifest
from mpsguard.images.store.store import ImageStore
from tests.harness.waiting import PATIENCE, wait_for
from tests.integration.checkpoints import faulty_copier, migrating
from tests.integration.checkpoints.migrating import PIECE
from tests.integration.checkpoints.world import World, region

ROOT = Path(__file__).parents[3]
WITHIN = 50.0
RECEIVER_STEPS = {
    "first round": "mpsguard.images.migration.incoming:IncomingMemory.update|after|1",
    "given": "mpsguard.images.migration.incoming:IncomingMemory.give_to|after|1",
    "ready": "mpsguard.vault.client.session:Session.report_ready|after|1",
    "offered": "mpsguard.vault.wire.checkpoint_requests:offer|after|1",
    "promoted": "mpsguard.vault.client.session:Session.wait_for_promotion|after|1",
    "released": "mpsguard.vault.client.session:Session.publish|before|1",
    "published": "mpsguard.vault.client.session:Session.publish|after|1",
}
ALWAYS = ("first round", "promoted", "released", "held")
"""Steps of every run; the others are those of the campaign."""
SOURCE_GOES_ON = ("first round", "given", "ready")
SOURCE_STEPS = {
    "begun": "mpsguard.images.checkpoints.handover:hold|before|1",
    "held": "mpsguard.images.checkpoints.handover:_until|before|1",
    "left": "mpsguard.vault.client.session:Session.close|after|1",
}


def steps(places: dict[str, str]) -> list[Any]:
    return [pytest.param(step, marks=() if step in ALWAYS else pytest.mark.soak) for step in places]


class Program:
    """One side of a migration."""

    def __init__(self, world: World, side: str, fault: str | None, deadline: float | None, what: str) -> None:
        variables = os.environ | ({faulty_copier.VARIABLE: f"{fault}|{what}"} if fault else {})
        if deadline is not None:
            variables[migrating.DEADLINE] = str(deadline)
        command = [sys.executable, "-m", migrating.__name__, side, world.vault.socket, str(world.store)]
        # Without a buffer: `communicate` reads past what a buffered reader of lines has read already.
        self._process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, bufsize=0)
        self.lines: list[str] = []
        self.has_stood_still = False
        """Whether a line took as long as a program waits for its receiver."""

    def line(self) -> str:
        assert self._process.stdout is not None
        began = time.monotonic()
        self.lines.append(self._process.stdout.readline().decode().strip())
        self.has_stood_still |= time.monotonic() - began > HOLD / 2
        return self.lines[-1]

    def is_stopped(self) -> bool:
        return ") T " in Path(f"/proc/{self._process.pid}/stat").read_text()

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> int:
        """Return how it ended, with all its lines read."""
        out, _ = self._process.communicate(timeout=WITHIN)
        self.lines += out.decode().split()
        return self._process.returncode

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def program(
    world: World, side: str, fault: str | None = None, deadline: float | None = None, what: str = "kill"
) -> Iterator[Program]:
    started = Program(world, side, fault, deadline, what)
    try:
        yield started
    finally:
        started.kill()


def step_of(world: World, name: str) -> int | None:
    """The step that a session is at, with its memory compared; None: there is none, or it has no state."""
    try:
        with world.vault.session(name, role=LeaseRole.READER) as session:
            state = session.state()
            if state is None:
                return None
            for region, expected in (("a", migrating.content(int(state))), ("weights", b"w" * PIECE)):
                with session.open(region) as opened:
                    assert os.pread(opened.fds[0], len(expected) + 1, 0) == expected
            return int(state)
    except UnknownSessionError:
        return None


def steps_in(source: Program) -> list[int]:
    return [int(line) for line in source.lines if line.isdigit()]


@pytest.mark.slow(seconds=4, reason="two programs and a copier")
def test_a_session_moves_while_its_program_works(world: World) -> None:
    with program(world, "source") as source:
        assert source.line() == "1"
        with program(world, "receiver") as receiver:
            assert receiver.end() == 0
        assert source.end() == 0
    steps = steps_in(source)
    assert source.lines[-1] == "moved"
    assert receiver.lines == [str(steps[-1])]
    # No step is lost or made twice: the receiver begins behind the last one that the source had.
    assert steps == list(range(1, steps[-1] + 1))
    assert (step_of(world, "s"), step_of(world, "t")) == (None, steps[-1])
    (record,) = [each for key, each in world.vault.vault.store.sessions.items() if key.name == "t"]
    assert record.keep == migrating.KEEP
    with world.vault.session("t") as session:
        assert session.describe("weights").is_sealed
        assert session.describe("a").metadata == b"mine"


@pytest.mark.slow(seconds=4, reason="two programs and a copier")
def test_a_program_that_takes_checkpoints_by_itself_moves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome of what the receiver asked for is there, although the program's own checkpoint begins at once."""
    monkeypatch.setenv(migrating.OWN, "1")
    with program(world, "source") as source:
        assert source.line() == "1"
        with program(world, "receiver", deadline=10.0) as receiver:
            assert receiver.end() == 0
        assert source.end() == 0
    # The source's checkpoint behind its last publication is refused, so it does not print that.
    assert (step_of(world, "s"), step_of(world, "t")) == (None, steps_in(source)[-1] + 1)


@pytest.mark.slow(seconds=30, reason="programs and copiers for each step; some of them wait for a deadline")
@pytest.mark.parametrize("step", steps(RECEIVER_STEPS))
def test_a_receiver_that_is_killed(world: World, step: str) -> None:
    with program(world, "source") as source:
        assert source.line() == "1"
        with program(world, "receiver", RECEIVER_STEPS[step]) as receiver:
            assert receiver.end() < 0
        if step in SOURCE_GOES_ON:
            last = int(source.line())
            while int(source.line()) < last + 20:
                pass
        else:
            assert source.end() == 0
            # Nothing works on it, and all of it is in one place: the old session, the new one, or the handover's image.
            last = steps_in(source)[-1] + 1
            kept = [found for name in "st" if (found := step_of(world, name)) is not None]
            assert kept == ([] if step == "released" else [last])
        if step in ("offered", "promoted"):
            # A program that is started anew finds it as it was.
            assert step_of(world, "t") is None
            return
        with program(world, "receiver") as again:
            assert again.end() == 0
        if step in SOURCE_GOES_ON:
            assert source.end() == 0
            last = steps_in(source)[-1]
    assert again.lines == [str(last)]
    assert (step_of(world, "s"), step_of(world, "t")) == (None, last)


@pytest.mark.slow(seconds=12, reason="programs and copiers for each step; one of them waits for a deadline")
@pytest.mark.parametrize("step", steps(SOURCE_STEPS))
def test_a_source_that_is_killed(world: World, step: str) -> None:
    with program(world, "source", SOURCE_STEPS[step]) as source:
        assert source.line() == "1"
        # Long enough for a copier to start.
        with program(world, "receiver", deadline=10.0 if step == "begun" else None) as receiver:
            status = receiver.end()
        assert source.end() < 0
    wait_for("the leases to end", lambda: not world.vault.vault.store.writers())
    # Its last publication may not have been printed.
    found = {name: step_of(world, name) for name in "st"}
    if step == "begun":
        assert (status != 0, found["t"]) == (True, None)
        assert found["s"] in (steps_in(source)[-1], steps_in(source)[-1] + 1)
    else:
        assert (status, found["s"]) == (0, None)
        assert found["t"] in (steps_in(source)[-1], steps_in(source)[-1] + 1)
        assert receiver.lines == [str(found["t"])]


@pytest.mark.slow(seconds=4, reason="two programs and a copier")
def test_an_image_of_a_round_is_not_gone_on_from(world: World) -> None:
    """The receiver ends; the program goes on, ends in order, and its session is released: the image is older."""
    with program(world, "source") as source:
        assert source.line() == "1"
        with program(world, "receiver", RECEIVER_STEPS["first round"]) as receiver:
            assert receiver.end() < 0
        last = int(source.line())
        while int(source.line()) < last + 5:
            pass
    released(world, "s")
    with pytest.raises(MigrationError, match="mpsguard run --image migration/s"):
        receive("t", "s", socket=world.vault.socket, store=world.store)
    assert step_of(world, "t") is None


@pytest.mark.slow(seconds=4, reason="two programs and a copier")
def test_an_image_of_a_handover_is_gone_on_from_once(world: World) -> None:
    with program(world, "source") as source:
        assert source.line() == "1"
        with program(world, "receiver") as receiver:
            assert receiver.end() == 0
        assert source.end() == 0
    released(world, "t")
    with pytest.raises(MigrationError, match="older than what its program"):
        receive("t", "s", socket=world.vault.socket, store=world.store)


def released(world: World, name: str) -> None:
    """Release a session, the program of which has ended."""
    sessions = world.vault.vault.store.sessions
    key = next(key for key in sessions if key.name == name)
    wait_for("the leases to end", lambda: not sessions[key].leases)
    world.vault.call(lambda: world.vault.vault.lifetimes.release_by_command(key, None, force=False))


@pytest.mark.slow(seconds=4, reason="two programs and a copier")
def test_a_receiver_does_not_wait_for_a_program_that_has_ended(world: World) -> None:
    began = time.monotonic()
    with program(world, "source", SOURCE_STEPS["begun"]) as source:
        assert source.line() == "1"
        with program(world, "receiver", deadline=600.0) as receiver:
            assert receiver.end() != 0
        assert source.end() < 0
    # A session without a program is told of as soon.
    with pytest.raises(MigrationError, match="has no program"):
        receive("t", "s", socket=world.vault.socket, store=world.store, deadline=600.0)
    assert time.monotonic() - began < WITHIN


def test_what_an_earlier_receiver_left_is_given_back_first(world: World) -> None:
    """It lies where a region belongs, and would take its room on the new GPU."""
    with world.vault.session("t") as left, region(left, "gone-since", bytes(PIECE)):
        pass
    with world.session("s") as source, region(source, "a", b"a" * PIECE), ThreadPoolExecutor(1) as threads:
        source.publish(b"step")
        # The page is made with the next publication.
        source.publish(b"step")
        publishing = threads.submit(publish_until_moved, source)
        with receive("t", "s", socket=world.vault.socket, store=world.store, deadline=WITHIN) as target:
            publishing.result()
            assert (list(target.names()), target.state()) == (["a"], b"step")


def test_a_standby_of_the_first_program_takes_over_from_it(world: World) -> None:
    """It was ready first. The receiver says so, and does not wait for its deadline."""
    with world.session("s") as source, region(source, "a", b"a" * PIECE), ThreadPoolExecutor(1) as threads:
        source.publish(b"step")
        source.publish(b"step")
        with world.vault.session("s", role=LeaseRole.STANDBY) as standby:
            standby.report_ready()
            moved = threads.submit(receive, "t", "s", socket=world.vault.socket, store=world.store, deadline=600.0)
            publish_until_moved(source, is_over=moved.done)
            with pytest.raises(MigrationError, match="another standby"):
                moved.result(WITHIN)
            assert standby.role is LeaseRole.STANDBY
            assert standby.wait_for_promotion(PATIENCE)
            assert standby.publish(b"it goes on")


@pytest.mark.slow(seconds=8, reason="the program stands still for five of them")
def test_a_receiver_that_comes_too_late_says_so(world: World) -> None:
    with program(world, "source") as source:
        assert source.line() == "1"
        with program(world, "receiver", RECEIVER_STEPS["given"], deadline=600.0, what="stop") as receiver:
            wait_for("it to stop", receiver.is_stopped)
            # The program stands still, and goes on. Its start does not count: on a busy machine that takes as long.
            source.has_stood_still = False
            seen = [source.line()]
            due = time.monotonic() + WITHIN
            while time.monotonic() < due and not source.has_stood_still:
                seen.append(source.line())
            receiver.go_on()
            assert receiver.end() != 0
        assert int(source.line()) > int(seen[0])


def test_a_state_that_does_not_fit_stays_where_it_is(world: World) -> None:
    with world.session("s") as source, region(source, "a", b"a" * PIECE), ThreadPoolExecutor(1) as threads:
        source.publish(b"step" * 100)
        source.publish(b"step" * 100)
        moved = threads.submit(
            receive, "t", "s", socket=world.vault.socket, store=world.store, deadline=WITHIN, capacity=399
        )
        publish_until_moved(source, b"step" * 100, moved.done)
        with pytest.raises(MigrationError, match="capacity=400"):
            moved.result()
        assert source.publish(b"it goes on")


def publish_until_moved(session: Session, state: bytes = b"step", is_over: Callable[[], bool] = lambda: False) -> None:
    due = time.monotonic() + WITHIN
    with suppress(StaleGenerationError):
        while time.monotonic() < due and not is_over():
            session.publish(state)
            # As in `migrating.source`: its copier needs the processor.
            time.sleep(0.002)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_users_store_is_not_gone_on_from(world: World) -> None:
    """In /dev/shm any user can make the store first, and an image of the session's name in it."""
    with ImageStore(world.store) as store, store.begin("migration/s") as draft:
        draft.commit(Manifest.made_now("s", (), forward_state=b"a stranger's"))
    os.chown(world.store, 65534, 65534)
    with pytest.raises(ForeignStoreError):
        receive("t", "s", socket=world.vault.socket, store=world.store)


def test_what_cannot_move_is_told(world: World) -> None:
    with pytest.raises(MigrationError, match="neither"):
        receive("t", "s", socket=world.vault.socket, store=world.store)
    with world.vault.session("s") as session:
        session.publish(b"1")
        with pytest.raises(MigrationError, match="takes no checkpoints"):
            receive("t", "s", socket=world.vault.socket, store=world.store)
    with world.session("s") as session:
        # The page is made with the first publication; this program makes no other one.
        session.publish(b"2")
        with pytest.raises(MigrationError, match="says nothing"):
            receive("t", "s", socket=world.vault.socket, store=world.store, deadline=0.2)
        assert session.publish(b"3")
    assert list(world.vault.vault.store.sessions) != []
    assert all(key.name == "s" for key in world.vault.vault.store.sessions)


def test_regions_come_and_go_between_two_rounds(world: World) -> None:
    content = {name: os.urandom(pieces * PIECE) for name, pieces in (("same", 2), ("gone", 1), ("other", 1))}
    with ExitStack() as undo:
        source = undo.enter_context(world.session("s"))
        incoming = IncomingMemory(0)
        undo.callback(incoming.close)
        undo.enter_context(region(source, "same", content["same"]))
        with region(source, "gone", content["gone"]), region(source, "other", content["other"]):
            source.publish(b"1")
            checkpoints.of(source).take("one").wait(PATIENCE)
        source.release("gone")
        source.release("other")
        content = {"same": content["same"], "other": os.urandom(2 * PIECE), "new": os.urandom(PIECE)}
        for name in ("other", "new"):
            undo.enter_context(region(source, name, content[name]))
        source.publish(b"2")
        checkpoints.of(source).take("two").wait(PATIENCE)
        with ImageStore(world.store) as store:
            copied = []
            for name in ("one", "two"):
                with store.open(name) as image:
                    copied.append(incoming.update(image))
        assert copied == [4 * PIECE, 3 * PIECE]
        with world.vault.session("t") as target:
            incoming.give_to(target)
            assert set(target.names()) == set(content)
            for name, expected in content.items():
                with target.open(name) as opened:
                    assert os.pread(opened.fds[0], len(expected) + 1, 0) == expected
