"""Checkpoints of a session that works on: real vault, real copier processes, memfds for memory."""

import os
import signal
import threading
from contextlib import ExitStack, suppress

import pytest

from mpsguard.client import BadRequestError, LeaseRole, NotPermittedError, StaleGenerationError, UnknownRegionError
from mpsguard.images import checkpoints
from mpsguard.images.checkpoints.checkpoint import CheckpointState
from mpsguard.images.checkpoints.errors import CheckpointBusyError, CheckpointError
from mpsguard.images.checkpoints.session_regions import SessionRegions
from mpsguard.images.checkpoints.sources import HostSource
from mpsguard.images.store.store import ImageStore
from mpsguard.vault.client import tensor_manifest
from mpsguard.vault.client.mapped import HostBackend, create
from mpsguard.vault.client.tensor_manifest import Placed
from tests.harness.waiting import PATIENCE, wait_for
from tests.integration.checkpoints.test_faults import with_fault
from tests.integration.checkpoints.world import PIECE, World, content_of, region
from tests.integration.vault.running import ThreadedVault


def test_an_image_is_what_memory_held_at_the_cut(world: World) -> None:
    with (
        world.session() as session,
        region(session, "a", os.urandom(5 * PIECE)) as a,
        region(session, "odd", os.urandom(5000), largest=4096) as odd,
    ):
        session.publish(b"step 1")
        before = {"a": content_of(a), "odd": content_of(odd)}
        checkpoint = checkpoints.of(session).take("one")
        for at in range(0, a.size, PIECE):
            with a.writing(at, 8):
                a.view(at, 8).write(b"step two")
        odd.writing()
        odd.view().write(b"odd")
        session.publish(b"step 2")
        ended = checkpoint.wait(PATIENCE)
        assert (ended.pieces, ended.copied, ended.unannounced) == (6, 6, 0)
        assert world.image("one") == before
        assert world.state("one") == b"step 1"


def test_what_did_not_change_is_not_copied_again(world: World) -> None:
    with world.session() as session, region(session, "a", os.urandom(8 * PIECE)) as a:
        session.publish(b"1")
        assert checkpoints.of(session).take("one").wait(PATIENCE).copied == 8
        with a.writing(3 * PIECE, 2):
            a.view(3 * PIECE, 2).write(b"xy")
        session.publish(b"2")
        ended = checkpoints.of(session).take("two").wait(PATIENCE)
        assert (ended.copied, ended.written, ended.unannounced) == (1, PIECE, 0)
        assert world.image("two") == {"a": content_of(a)}


def test_the_first_checkpoint_of_a_started_copier_waits_for_no_guard(world: World) -> None:
    """A server that makes a token each millisecond starts the copier ahead, so that no token waits for the vault."""
    with (
        world.session() as session,
        region(session, "a", os.urandom(2 * PIECE)),
        region(session, "weights", os.urandom(PIECE)) as weights,
    ):
        weights.region.seal()
        taking = checkpoints.of(session)
        assert not taking.is_ready
        taking.start()
        session.publish(b"1")
        wait_for("the copier", lambda: taking.is_ready)
        held, gate = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            gate.wait(PATIENCE)

        holding = threading.Thread(target=world.vault.call, args=(hold,))
        publishing = threading.Thread(target=session.publish, args=(b"2",))
        holding.start()
        try:
            assert held.wait(PATIENCE)
            checkpoint = taking.arm("one")
            publishing.start()
            publishing.join(5.0)
            assert checkpoint.tries == 1
            assert checkpoint.wait(20.0).copied == 3
        finally:
            gate.set()
            holding.join(PATIENCE)
        publishing.join(PATIENCE)


def test_a_write_before_the_cut_that_was_not_announced_is_in_the_image_and_counted(world: World) -> None:
    with world.session() as session, region(session, "a", os.urandom(4 * PIECE)) as a:
        session.publish(b"1")
        checkpoints.of(session).take("one").wait(PATIENCE)
        a.view(PIECE, 1).write(bytes([a.view(PIECE, 1).read()[0] ^ 1]))
        ended = checkpoints.of(session).take("two").wait(PATIENCE)
        assert (ended.copied, ended.unannounced) == (1, 1)
        assert world.image("two") == {"a": content_of(a)}


def test_memory_of_zeros_takes_no_room(world: World) -> None:
    with world.session() as session, region(session, "a", bytes(4 * PIECE)) as a:
        session.publish(b"1")
        assert checkpoints.of(session).take("one").wait(PATIENCE).written == 0
        assert world.image("one") == {"a": content_of(a)}


def test_with_spare_memory_the_writer_does_not_wait(world: World) -> None:
    with world.session(spare=16 * PIECE) as session, region(session, "a", os.urandom(16 * PIECE)) as a:
        session.publish(b"1")
        checkpoints.of(session).take("warm").wait(PATIENCE)
        a.writing()
        a.view().write(os.urandom(a.size))
        before = content_of(a)
        checkpoint = checkpoints.of(session).take("one")
        a.writing()
        a.view().write(os.urandom(a.size))
        checkpoint.wait(PATIENCE)
        assert world.image("one") == {"a": before}
        # The slots serve the next one, too.
        before = content_of(a)
        checkpoint = checkpoints.of(session).take("two")
        a.writing()
        a.view().write(os.urandom(a.size))
        checkpoint.wait(PATIENCE)
        assert world.image("two") == {"a": before}


def test_a_writer_takes_one_before_it_has_published_itself(world: World) -> None:
    """The state is that of the writer before it."""
    with world.session() as session, region(session, "a", b"a" * PIECE):
        session.publish(b"1")
    with world.session() as session:
        checkpoints.of(session).take("one").wait(PATIENCE)
        assert (world.image("one"), world.state("one")) == ({"a": b"a" * PIECE}, b"1")


@pytest.mark.parametrize("role", [LeaseRole.FENCED, LeaseRole.STANDBY])
def test_only_the_writer_takes_one(world: World, role: LeaseRole) -> None:
    """Another process writes the memory, and has published: its state would be beside memory of any moment."""
    with world.session() as session, region(session, "a", b"a" * PIECE):
        session.publish(b"1")
        key = next(iter(world.vault.vault.store.sessions))
        if role is LeaseRole.FENCED:
            world.vault.call(lambda: world.vault.vault.fence(key))
            with world.vault.session() as writer:
                writer.publish(b"2")
                with pytest.raises(StaleGenerationError):
                    checkpoints.of(session).take("one").wait(PATIENCE)
        else:
            with world.vault.standby() as standby:
                checkpoints.of(standby, store=world.store, buffers=64 << 20)
                with pytest.raises(CheckpointError, match="writer"):
                    checkpoints.of(standby).take("one").wait(PATIENCE)
        assert world.names() == []


def test_one_at_a_time(world: World) -> None:
    with world.session() as session, region(session, "a", os.urandom(16 * PIECE)) as a:
        session.publish(b"1")
        first = checkpoints.of(session).take("one")
        with pytest.raises(CheckpointBusyError):
            checkpoints.of(session).take("two")
        first.wait(PATIENCE)
        with a.writing(0, 1), pytest.raises(CheckpointBusyError, match="blocks"):
            checkpoints.of(session).take("two")
        checkpoints.of(session).take("two").wait(PATIENCE)
        assert world.names() == ["one", "two"]


def test_two_sessions_at_once_under_one_name(world: World) -> None:
    contents = [os.urandom(6 * PIECE) for _ in range(2)]
    with (
        world.session("s") as one,
        world.session("t") as other,
        region(one, "a", contents[0]),
        region(other, "a", contents[1]),
    ):
        one.publish(b"1")
        other.publish(b"2")
        both = [checkpoints.of(session).take("same") for session in (one, other)]
        for each in both:
            each.wait(PATIENCE)
        assert world.image("same")["a"] in contents


def test_nothing_to_take(world: World) -> None:
    with world.session() as session, region(session, "a", b"x" * 4096):
        with pytest.raises(CheckpointError, match="nothing was published"):
            checkpoints.of(session).take("one")
        session.publish(b"1")
        checkpoints.of(session).take("one").wait(PATIENCE)
    with world.session("empty") as session:
        session.publish(b"1")
        with pytest.raises(CheckpointError, match="0 pieces"):
            checkpoints.of(session).take("one")


def test_a_bad_name_is_refused_at_once(world: World) -> None:
    with world.session() as session, region(session, "a", b"x" * 4096):
        session.publish(b"1")
        with pytest.raises(BadRequestError, match="image"):
            checkpoints.of(session).take("../one")
        with pytest.raises(BadRequestError, match="image"):
            checkpoints.of(session).every(1.0, "two words")


def test_a_reader_takes_none(world: World) -> None:
    with (
        world.vault.session(),
        world.vault.session(role=LeaseRole.READER) as reader,
        pytest.raises(NotPermittedError),
    ):
        checkpoints.of(reader, store=world.store)


def test_an_interval_takes_them_when_the_program_publishes(world: World) -> None:
    with world.session() as session, region(session, "a", os.urandom(PIECE)) as a:
        session.publish(b"0")
        checkpoints.of(session).take("first").wait(PATIENCE)
        checkpoints.of(session).every(0.001, "often")
        step = 0
        while "often" not in world.names():
            step += 1
            with a.writing(0, 8):
                a.view(0, 8).write(b"%8d" % step)
            session.publish(b"%d" % step)
        checkpoints.of(session).every(0, "often")
        # Whatever step it was, state and memory are of one.
        found = world.image("often")["a"][:8]
        assert int(found) == int(world.state("often"))


def test_regions_come_and_go_between_checkpoints(world: World) -> None:
    with world.session() as session, region(session, "a", os.urandom(PIECE)) as a:
        session.publish(b"1")
        checkpoints.of(session).take("one").wait(PATIENCE)
        with region(session, "b", os.urandom(2 * PIECE)) as b:
            checkpoints.of(session).take("two").wait(PATIENCE)
            assert world.image("two") == {"a": content_of(a), "b": content_of(b)}
        session.release("b")
        checkpoints.of(session).take("three").wait(PATIENCE)
        assert world.image("three") == {"a": content_of(a)}
        with region(session, "b", os.urandom(PIECE)) as b:
            checkpoints.of(session).take("four").wait(PATIENCE)
            assert world.image("four") == {"a": content_of(a), "b": content_of(b)}
        with pytest.raises(UnknownRegionError):
            session.open("c")


def test_a_session_with_a_copier_can_be_released(world: World) -> None:
    with world.session() as session:
        with region(session, "a", os.urandom(PIECE)):
            session.publish(b"1")
            checkpoints.of(session).take("one").wait(PATIENCE)
        session.release()
    assert list(world.vault.vault.store.sessions) == []


def test_memory_of_a_released_region_is_given_back(world: World) -> None:
    """At once, and not with the next checkpoint."""
    with world.session() as session:
        with region(session, "a", os.urandom(PIECE)) as a:
            session.publish(b"1")
            checkpoints.of(session).take("one").wait(PATIENCE)
            with session.open(a.name) as opened:
                inode = os.fstat(opened.fds[0]).st_ino
        session.release("a")
        wait_for("its memory to go", lambda: inode not in inodes())


def test_memory_that_was_unmapped_is_not_digested() -> None:
    """On a GPU that would be a fault of the lane. Another region has changed meanwhile."""
    backend = HostBackend()
    backend.gpu = "GPU-00000000-0000-0000-0000-000000000001"
    with ThreadedVault(simulated=True) as vault:
        with vault.session() as session, create(session, backend, "a", PIECE) as a:
            regions = SessionRegions(session, lambda _: HostSource((), (PIECE,)))
            (record,) = regions.records()
            assert regions.source(record).gpu is None
            regions.changed()
            assert regions.source_of("a") is not None
            regions.unmapped("a")
            session.memory.note_unmapped("a")
            with pytest.raises(CheckpointError, match="has not mapped it"):
                regions.source(record)
            regions.close()
            assert a.size
        vault.storage.empty()


def inodes() -> set[int]:
    """Of all files that this process, with its vault, has open."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.add(os.fstat(int(fd)).st_ino)
    return found


def test_a_region_is_released_behind_a_checkpoint_that_was_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copier is killed; the vault may see that later than this process, and takes it for another one."""
    # It hangs: nothing is copied by the time that the program writes.
    with (
        with_fault(monkeypatch, "cut", "stop"),
        world.session(patience=0.0, buffers=1 << 30) as session,
    ):
        for number in range(4):
            with region(session, "a", os.urandom(6 * PIECE)) as a:
                session.publish(b"1")
                checkpoint = checkpoints.of(session).take("one")
                a.writing()
                assert checkpoint.state is CheckpointState.REFUSED, number
                session.release("a")


def test_closing_gives_up_what_is_under_way(world: World) -> None:
    with world.session() as session, region(session, "a", os.urandom(16 * PIECE)):
        session.publish(b"1")
        checkpoint = checkpoints.of(session).take("one")
        checkpoints.of(session).close()
        assert checkpoint.state in (CheckpointState.REFUSED, CheckpointState.COMMITTED)


def test_the_lease_does_not_wait_for_the_copier(world: World) -> None:
    """A copier takes long to give back pinned memory; here it does not end at all until it is killed."""
    with world.session() as session, region(session, "a", os.urandom(PIECE)):
        session.publish(b"1")
        checkpoints.of(session).take("one").wait(PATIENCE)
        copier = checkpoints.of(session)._copier
        assert copier is not None
        with world.vault.session("s", role=LeaseRole.STANDBY) as standby:
            standby.report_ready()
            os.kill(copier.pid, signal.SIGSTOP)
            closing = threading.Thread(target=session.close, kwargs={"in_order": False})
            closing.start()
            try:
                assert standby.wait_for_promotion(PATIENCE)
                assert not copier.has_ended
            finally:
                closing.join()
        assert copier.has_ended


def placed(**tensors: int) -> bytes:
    """A manifest of tensors of four bytes, by their offsets."""
    shapes = {name: Placed("uint8", (4,), (1,), offset) for name, offset in tensors.items()}
    return tensor_manifest.encode(tensor_manifest.of(shapes))


def test_tensors_that_no_image_can_name_are_left_out(world: World) -> None:
    long = "n" * 4097
    manifests = {"a": placed(x=0, **{long: 8}), "b": placed(x=0), "c": placed(**{"a/x": 0, "y": 4})}
    with world.session() as session, ExitStack() as undo:
        for name, manifest in manifests.items():
            undo.enter_context(region(session, name, bytes(PIECE)))
            undo.enter_context(region(session, f"{name}.manifest", manifest))
        session.publish(b"1")
        checkpoints.of(session).take("one").wait(PATIENCE)
    with ImageStore(world.store) as store, store.open("one") as image:
        assert {tensor.name for tensor in image.manifest.tensors} == {"a/x", "b/x", "y"}
