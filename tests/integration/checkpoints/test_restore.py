"""A new session from an image: whole, at the same addresses, or not at all."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from blake3 import blake3

from mpsguard import client
from mpsguard.client import (
    BadRequestError,
    LeaseHeldError,
    LeaseRole,
    QuotaError,
    Session,
    UnavailableError,
    UnknownSessionError,
)
from mpsguard.images import checkpoints
from mpsguard.images.checkpoints import restore
from mpsguard.images.checkpoints.errors import RestoreError
from mpsguard.images.checkpoints.targets import HostTarget
from mpsguard.images.membership import join
from mpsguard.images.store.errors import DamagedError, UnknownImageError
from mpsguard.images.store.store import ImageStore
from mpsguard.vault.client.mapped import HostBackend, attach, open_or_create
from mpsguard.vault.server.quota import Quota
from mpsguard.vault.wire import checkpoint_requests
from tests.harness.waiting import PATIENCE, wait_for
from tests.integration.checkpoints.world import PIECE, World, content_of, region
from tests.integration.vault.running import ThreadedVault, memory

ROOT = Path(__file__).parents[3]


def make_image(world: World, name: str = "one", state: bytes = b"step 7") -> tuple[dict[str, bytes], int]:
    """An image of two regions; their content, and the address of the first one."""
    content = {"a": os.urandom(3 * PIECE) + bytes(2 * PIECE), "odd": os.urandom(5 * 4096)}
    with (
        world.session("source") as session,
        region(session, "a", content["a"], metadata=b"mine") as a,
        region(session, "odd", content["odd"], largest=2 * 4096) as odd,
    ):
        odd.region.seal((1,))
        session.publish(state)
        checkpoints.of(session).take(name).wait(PATIENCE)
        return content, a.va


def joined(world: World, image: str = "one", capacity: int = 65536) -> Session:
    return join("restored", socket=world.vault.socket, image=image, store=world.store, capacity=capacity)


def test_a_new_session_is_what_the_image_is(world: World) -> None:
    content, va = make_image(world)
    with joined(world) as session:
        assert session.state() == b"step 7"
        for name, expected in content.items():
            with attach(session, HostBackend(), name) as memory:
                assert content_of(memory) == expected
        with attach(session, HostBackend(), "a", writable=True) as memory:
            assert (memory.va, memory.region.metadata) == (va, b"mine")
        described = session.describe("odd")
        assert (described.sealed, described.layout.sizes) == ((1,), (8192, 8192, 4096))


def test_a_session_that_goes_on_keeps_what_it_has(world: World) -> None:
    make_image(world)
    with joined(world) as session:
        session.publish(b"step 8")
        with attach(session, HostBackend(), "a", writable=True) as memory:
            memory.view(0, 5).write(b"newer")
    with joined(world) as session, attach(session, HostBackend(), "a") as memory:
        assert session.state() == b"step 8"
        assert memory.view(0, 5).read() == b"newer"


def test_a_standby_finds_it_restored_and_goes_on(world: World) -> None:
    content, _ = make_image(world)
    with (
        joined(world) as session,
        world.vault.standby("restored") as standby,
        attach(standby, HostBackend(), "a", writable=True) as memory,
    ):
        assert content_of(memory) == content["a"]
        session.close(in_order=False)
        assert standby.ready(PATIENCE)
        assert standby.state() == b"step 7"
        standby.publish(b"step 8")


def test_a_program_needs_no_other_code(world: World) -> None:
    content, _ = make_image(world)
    with joined(world) as session, open_or_create(session, HostBackend(), "a", len(content["a"])) as memory:
        assert not memory.made
        assert content_of(memory) == content["a"]


def test_the_environment_names_the_image(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    make_image(world)
    monkeypatch.setenv("MPSGUARD_IMAGE", "one")
    monkeypatch.setenv("MPSGUARD_IMAGES", str(world.store))
    with join("restored", socket=world.vault.socket) as session:
        assert session.state() == b"step 7"
    with pytest.raises(BadRequestError, match="MPSGUARD_IMAGE"):
        client.join("other", socket=world.vault.socket)
    monkeypatch.delenv("MPSGUARD_IMAGE")
    for join_it in (join, client.join):
        with join_it("other", socket=world.vault.socket) as session:
            assert session.state() is None


def test_a_damaged_image_leaves_nothing(world: World) -> None:
    make_image(world)
    victim = max((path for path in world.store.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    victim.chmod(0o600)
    with victim.open("r+b") as file:
        file.seek(12345)
        file.write(b"flipped")
    with pytest.raises(DamagedError):
        joined(world)
    with world.vault.session("restored") as session:
        assert (list(session.names()), session.state()) == ([], None)


class SelfDigestingTarget(HostTarget):
    """Simulates a GPU's memory, which is digested after it was filled, by host memory."""

    digests_itself = True
    lost = -1
    """Index of a piece that the simulated bus loses."""

    def write(self, index: int, content: memoryview) -> None:
        if index != self.lost:
            super().write(index, content)

    def digests(self, indices: Sequence[int]) -> bytes:
        whole = b"".join(os.pread(fd, os.fstat(fd).st_size, 0) for fd in self._fds)
        return b"".join(blake3(whole[index * PIECE : (index + 1) * PIECE]).digest() for index in indices)


def test_memory_that_digests_itself_is_compared_when_it_is_full(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    content, _ = make_image(world)
    monkeypatch.setattr(restore, "HostTarget", SelfDigestingTarget)
    with joined(world) as session:
        for name, expected in content.items():
            with attach(session, HostBackend(), name) as memory:
                assert content_of(memory) == expected
        session.release()
    monkeypatch.setattr(SelfDigestingTarget, "lost", 1)
    with pytest.raises(DamagedError):
        joined(world)
    with world.vault.session("restored") as session:
        assert (list(session.names()), session.state()) == ([], None)


@pytest.mark.parametrize("target", [HostTarget, SelfDigestingTarget])
def test_a_damaged_image_is_repaired_by_the_next_one(
    world: World, monkeypatch: pytest.MonkeyPatch, target: type[HostTarget]
) -> None:
    content, _ = make_image(world)
    monkeypatch.setattr(restore, "HostTarget", target)
    digest = blake3(content["a"][:PIECE]).hexdigest()
    victim = world.store / "pieces" / digest[:2] / digest
    victim.chmod(0o600)
    victim.write_bytes(bytes(PIECE))
    victim.chmod(0o400)
    with pytest.raises(DamagedError) as damaged:
        joined(world)
    assert damaged.value.digest == digest
    with ImageStore(world.store) as store, store.begin("other") as draft:
        assert draft.put(content["a"][:PIECE]) == digest
    with joined(world) as session:
        assert session.state() == b"step 7"


def test_an_image_that_is_not_there_leaves_nothing(world: World) -> None:
    with pytest.raises(UnknownImageError):
        joined(world, "none")
    with world.vault.session("restored") as session:
        assert (list(session.names()), session.state()) == ([], None)


def test_a_state_that_does_not_fit_is_refused_before_anything(world: World) -> None:
    make_image(world, state=b"x" * 1000)
    with pytest.raises(RestoreError, match="capacity=1000"):
        joined(world, capacity=999)


def test_a_region_that_is_refused_takes_the_others_with_it(world: World) -> None:
    make_image(world)
    with ThreadedVault(Quota(host_bytes_per_uid=5 * PIECE + 4096)) as small:
        with pytest.raises(QuotaError):
            join("restored", socket=small.socket, image="one", store=world.store, capacity=16)
        with small.session("restored", capacity=16) as session:
            assert (list(session.names()), session.state()) == ([], None)
        small.storage.empty()


def test_what_an_interrupted_restoration_left_is_replaced(world: World) -> None:
    """SIGKILL at random moments, again and again; then one that ends: no half of it is ever taken for whole."""
    content, _ = make_image(world)
    program = (
        "import sys; from mpsguard.images.membership import join\n"
        "with join('restored', socket=sys.argv[1], image='one', store=sys.argv[2]) as s: print(s.state(), flush=True)"
    )
    for delay in (0.05, 0.1, 0.15, 0.2):
        child = subprocess.Popen(
            [sys.executable, "-c", program, world.vault.socket, str(world.store)], cwd=ROOT, stdout=subprocess.PIPE
        )
        try:
            child.communicate(timeout=delay)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.communicate()
    with joined(world) as session:
        assert session.state() == b"step 7"
        for name, expected in content.items():
            with attach(session, HostBackend(), name) as memory:
                assert content_of(memory) == expected


def test_a_region_left_without_a_state_makes_way_also_under_another_name(world: World) -> None:
    """Of a program that died before its first publication, or of the restoration of another image."""
    content, _ = make_image(world)
    with (
        world.vault.session("restored", capacity=65536) as session,
        region(session, "in-the-way", b"half" * 1024) as left,
    ):
        at = left.va
        elsewhere = memory(1)
        session.create("elsewhere", [elsewhere])
        os.close(elsewhere.fd)
    with joined(world) as session:
        assert at in {session.describe(name).layout.va for name in content}
        assert set(session.names()) == {*content, "elsewhere"}


def test_regions_left_without_a_state_are_replaced_unless_they_are_in_use(world: World) -> None:
    content, _ = make_image(world)
    with world.vault.session("restored") as session, region(session, "a", b"half" * 1024):
        pass
    with world.vault.session("restored") as session, world.vault.session("restored", role=LeaseRole.READER) as reader:
        held = reader.open("a")
        session.close()
        with pytest.raises(LeaseHeldError):
            joined(world)
        held.close()
    wait_for("the reader's lease to end", lambda: not world.vault.vault.store.writers())
    with joined(world) as session, attach(session, HostBackend(), "a") as memory:
        assert content_of(memory) == content["a"]


def test_the_example_goes_on_from_its_image(world: World) -> None:
    variables = os.environ | {"MPSGUARD_VAULT": world.vault.socket, "MPSGUARD_IMAGES": str(world.store)}

    def ran(steps: int) -> list[str]:
        command = [sys.executable, "-m", "examples.checkpointed", str(steps)]
        done = subprocess.run(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, timeout=PATIENCE, check=True)
        return done.stdout.decode().splitlines()

    assert ran(20) == ["begins with step 1", f"ends with {sum(range(21))}"]
    with ImageStore(world.store) as store, store.open("sums") as image:
        assert image.manifest.maker.program == "checkpointed.py"
    with world.vault.session("checkpointed") as session:
        session.release()
    assert ran(3) == ["begins with step 21", f"ends with {sum(range(24))}"]


def test_without_the_extra_the_error_says_what_to_install(world: World, tmp_path: Path) -> None:
    (tmp_path / "blake3.py").write_text("raise ModuleNotFoundError('no', name='blake3')\n")
    variables = os.environ | {"MPSGUARD_VAULT": world.vault.socket, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    for call in (
        "from mpsguard.images import membership",
        "from mpsguard.client import join; from mpsguard.images import checkpoints as c; c.of(join('s')).take('one')",
    ):
        command = [sys.executable, "-c", call]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert "pip install 'mpsguard[images]'" in done.stderr.splitlines()[-1]


@pytest.mark.slow(seconds=3, reason="60 steps of the example")
def test_the_example_is_asked_for_checkpoints_again_and_again(world: World) -> None:
    """One that is asked for may be under way whenever the example wants its own: it goes on."""
    variables = os.environ | {"MPSGUARD_VAULT": world.vault.socket, "MPSGUARD_IMAGES": str(world.store)}
    command = [sys.executable, "-m", "examples.checkpointed", "60"]
    with subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True) as example:
        try:
            wait_for("the page of requests", lambda: has_page(world, "checkpointed"))
            with world.vault.session("checkpointed", role=LeaseRole.READER) as reader:
                while example.poll() is None:
                    # It may have given its lease back by now.
                    with suppress(UnavailableError):
                        reader.request_checkpoint("asked")
                    # Less than a step, so that one is taken at each.
                    with suppress(subprocess.TimeoutExpired):
                        example.wait(0.01)
            assert example.stdout is not None
            assert example.stdout.read().splitlines() == ["begins with step 1", f"ends with {sum(range(61))}"]
        finally:
            example.kill()
    assert "asked" in world.names()


def has_page(world: World, name: str) -> bool:
    """Whether a session's program can be asked for checkpoints."""
    try:
        with world.vault.session(name, role=LeaseRole.READER) as session:
            return checkpoint_requests.REGION in session.names()
    except UnknownSessionError:
        return False
