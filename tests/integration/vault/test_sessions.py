"""Sessions and regions over the real socket: what is given comes back, and what must not be is refused by its name."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from mpsguard import client
from mpsguard.client import Chunk, Grant, LeaseRole
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import wait_for
from tests.integration.vault.running import (
    REPOSITORY,
    LocalStorage,
    ThreadedVault,
    close_chunks,
    content,
    memory,
)

GPU = "GPU-00000000-0000-0000-0000-000000000001"


@pytest.fixture
def vault() -> Iterator[ThreadedVault]:
    before = open_descriptors()
    with ThreadedVault(simulated=True, gpus=frozenset({GPU})) as running:
        yield running
        running.storage.empty()
    assert opened_since(before) == []


@pytest.mark.parametrize("count", [1, 253, 254, 512, 1100])
def test_a_region_comes_back_whole_and_in_order(vault: ThreadedVault, count: int) -> None:
    chunks = [memory(index) for index in range(count)]
    with vault.session() as writer, vault.standby() as reader:
        writer.create("weights", chunks, va=0x2000_0000_0000, gpu=GPU, metadata=b"v1").seal()
        close_chunks(chunks)
        with reader.open("weights", sizes=[4096] * count, va=0x2000_0000_0000, gpu=GPU) as region:
            assert len(region.fds) == count
            assert all(os.pread(fd, 4096, 0) == content(index) for index, fd in enumerate(region.fds))
            assert (region.metadata, region.metadata_version, len(region.sealed)) == (b"v1", 0, count)


def test_a_session_is_unknown_until_a_writer_makes_it(vault: ThreadedVault) -> None:
    with pytest.raises(client.UnknownSessionError):
        vault.standby()
    with vault.session():
        vault.standby().close()


def test_there_is_one_writer(vault: ThreadedVault) -> None:
    with vault.session() as first:
        with pytest.raises(client.LeaseHeldError):
            vault.session()
        with vault.standby() as standby:
            with pytest.raises(client.LeaseHeldError):
                standby.acquire()
            first.close()
            standby.acquire()
            assert (standby.role, standby.generation) == (LeaseRole.WRITER, 2)


class Interrupting:
    """A descriptor that can be sealed, but not sent for Ctrl-C."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def __index__(self) -> int:
        raise KeyboardInterrupt


def test_an_interrupted_writer_stays_the_writer(vault: ThreadedVault) -> None:
    chunk = memory(0)
    with vault.session() as writer, vault.standby() as standby:
        standby.report_ready()
        with pytest.raises(KeyboardInterrupt):
            writer.create("r", [Chunk(Interrupting(chunk.fd), 4096)])  # type: ignore[arg-type]
        writer.create("r", [chunk])
        writer.publish(b"still")
        assert (writer.role, writer.generation, list(standby.names())) == (LeaseRole.WRITER, 1, ["r"])
    close_chunks([chunk])


def test_a_reader_changes_nothing(vault: ThreadedVault) -> None:
    chunk = memory(0)
    with vault.session() as writer, vault.session(role=LeaseRole.READER) as reader:
        writer.create("r", [chunk])
        with pytest.raises(client.NotPermittedError):
            reader.create("x", [chunk])
        for refused in (lambda: reader.seal("r"), lambda: reader.set_metadata("r", b""), lambda: reader.release("r")):
            with pytest.raises(client.NotPermittedError):
                refused()
        with pytest.raises(client.NotPermittedError):
            reader.publish(b"x")
    close_chunks([chunk])


def test_expectations_are_checked(vault: ThreadedVault) -> None:
    chunk = memory(0)
    with vault.session() as writer:
        writer.create("r", [chunk], va=1 << 40, gpu=GPU)
        with pytest.raises(client.LayoutMismatchError):
            writer.open("r", sizes=[8192])
        with pytest.raises(client.LayoutMismatchError):
            writer.open("r", va=1 << 41)
        with pytest.raises(client.WrongGpuError):
            writer.open("r", gpu="GPU-2")
        with pytest.raises(client.WrongGpuError):
            writer.create("elsewhere", [chunk], gpu="GPU-2")
        with pytest.raises(client.LayoutMismatchError):
            writer.create("over", [chunk], va=(1 << 40) - 0)
        with pytest.raises(client.ExistsError):
            writer.create("r", [chunk])
        with pytest.raises(client.UnknownRegionError):
            writer.open("none")
        with pytest.raises(client.BadRequestError):
            writer.create("bad name\n", [chunk])
        assert list(writer.names()) == ["r"]
    close_chunks([chunk])


def test_what_is_not_the_announced_memory_is_refused_and_the_lease_stands(vault: ThreadedVault) -> None:
    good, other = memory(0), memory(1)
    pipe = os.pipe()
    ours, theirs = socket.socketpair()
    with vault.session() as writer, ours, theirs:
        for chunks in (
            [Chunk(good.fd, 8192)],
            [good, good],
            [good, Chunk(pipe[0], 4096)],
            [Chunk(ours.fileno(), 4096), good],
            [good] + [other] * 300,
        ):
            with pytest.raises(client.BadRequestError):
                writer.create("r", chunks)
            assert list(writer.names()) == []
        writer.create("r", [good, other])
    close_chunks([good, other])
    os.close(pipe[0])
    os.close(pipe[1])


def test_a_region_is_not_released_while_another_maps_it(vault: ThreadedVault) -> None:
    chunk = memory(0)
    with vault.session() as writer, vault.standby() as reader:
        writer.create("r", [chunk])
        region = reader.open("r")
        with pytest.raises(client.LeaseHeldError):
            writer.release("r")
        with pytest.raises(client.LeaseHeldError):
            writer.release()
        region.close()
        writer.release("r")
        assert list(writer.names()) == []
    close_chunks([chunk])


def test_metadata_have_a_version_and_end_with_the_seal(vault: ThreadedVault) -> None:
    chunks = [memory(0), memory(1)]
    with vault.session() as writer:
        region = writer.create("r", chunks)
        region.set_metadata(b"a", expected_version=0)
        assert region.metadata_version == 1
        with pytest.raises(client.StaleGenerationError):
            region.set_metadata(b"b", expected_version=0)
        region.seal((1,))
        assert region.sealed == (1,)
        region.set_metadata(b"c")
        with pytest.raises(client.BadRequestError):
            region.seal((2,))
        region.seal()
        with pytest.raises(client.SealedError):
            region.set_metadata(b"d")
        assert writer.describe("r").metadata == b"c"
    close_chunks(chunks)


def test_a_fenced_writer_can_do_nothing_and_still_holds_its_regions(vault: ThreadedVault) -> None:
    chunk = memory(0)
    with vault.session(keep=1000) as old, vault.standby() as standby:
        old.create("r", [chunk])
        assert old.publish(b"counts") == 1
        key, lease = vault.call(
            lambda: next((s.key, s.readers[0].token) for s in vault.vault.store.sessions.values() if s.readers)
        )
        assert vault.run(vault.vault.promote(key, lease))
        assert standby.wait_for_promotion(10)
        with pytest.raises(client.StaleGenerationError):
            old.publish(b"does not count")
        for refused in (
            lambda: old.create("x", [chunk]),
            lambda: old.seal("r"),
            lambda: old.set_metadata("r", b""),
            lambda: old.release("r"),
            lambda: old.open("r"),
            old.acquire,
        ):
            with pytest.raises(client.StaleGenerationError):
                refused()
        state = standby.latest()
        assert state is not None
        assert (state.state, state.generation, standby.generation) == (b"counts", 1, 2)
        assert standby.publish(b"next") == 2
        with pytest.raises(client.LeaseHeldError):
            standby.release("r")
        old.close()
        standby.release("r")
    close_chunks([chunk])


def test_a_reader_follows_the_state_through_a_change_of_writers(vault: ThreadedVault) -> None:
    with vault.session(keep=1000) as first, vault.session(role=LeaseRole.READER) as reader:
        assert reader.latest() is None
        first.publish(b"one")
        assert reader.latest() == (1, 1, b"one")
        first.close()
        assert reader.latest() == (1, 1, b"one")
        with vault.session() as second:
            second.publish(b"two")
            assert reader.latest() == (2, 2, b"two")


OTHER_USER = """
import os, sys
from mpsguard import client
from mpsguard.client import LeaseRole
# Not before: the interpreter may lie where that user cannot read.
os.setgid(65534); os.setuid(65534)
def attempt(**more):
    try:
        with client.Session(sys.argv[2], socket=sys.argv[1], **more) as session:
            return sorted(session.names())
    except client.VaultError as error:
        return error.code.value
print(attempt(owner=0, role=LeaseRole.READER), attempt(owner=0), attempt(role=LeaseRole.READER))
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
@pytest.mark.parametrize(
    ("grants", "expected"),
    [
        ((), "not_permitted not_permitted unknown_session"),
        ((Grant(65534),), "['r'] not_permitted unknown_session"),
        ((Grant(65534, write=True),), "['r'] ['r'] unknown_session"),
    ],
)
def test_other_users_see_what_they_are_granted(vault: ThreadedVault, grants: tuple[Grant, ...], expected: str) -> None:
    chunk = memory(0)
    vault.root.chmod(0o755)
    with vault.session("theirs", grants=grants, keep=1000) as writer:
        writer.create("r", [chunk])
    close_chunks([chunk])
    for name, wanted in (("theirs", expected), ("none", "not_permitted not_permitted unknown_session")):
        said = subprocess.run(
            [sys.executable, "-c", OTHER_USER, vault.socket, name],
            cwd=REPOSITORY,
            env={"PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert said.stdout.strip() == wanted, said.stderr


DIES = """
import os, sys
sys.path.insert(0, sys.argv[2])
from mpsguard import client
session = client.Session("s", socket=sys.argv[1], keep=1000)
session.publish(b"last words")
fd = os.memfd_create("x"); os.ftruncate(fd, 4096)
session.create("r", [client.Chunk(fd, 4096)])
if os.fork() == 0:
    # Keeps the connection open after the writer's end.
    os.read(0, 1)
    os._exit(0)
os.kill(os.getpid(), 9)
"""


def test_a_writers_death_ends_its_lease_even_if_a_child_holds_the_connection(vault: ThreadedVault) -> None:
    with (
        subprocess.Popen([sys.executable, "-c", DIES, vault.socket, str(REPOSITORY)], stdin=subprocess.PIPE) as dying,
        vault.session("mine"),
    ):
        assert dying.wait(30) == -9
        with vault.standby() as standby:

            def acquired() -> bool:
                try:
                    standby.acquire()
                except client.LeaseHeldError:
                    return False
                return True

            wait_for("the lease of the dead", acquired)
            assert standby.latest() == (1, 1, b"last words")
            with standby.open("r") as region:
                assert len(region.fds) == 1
        assert dying.stdin is not None
        dying.stdin.close()


def test_everything_stands_for_the_next_vault_and_half_made_things_do_not() -> None:
    before = open_descriptors()
    storage = LocalStorage()
    chunks = [memory(index) for index in range(300)]
    with ThreadedVault(storage=storage) as first, first.session(keep=None) as writer:
        writer.create("r", chunks, metadata=b"m").seal((1, 2))
        writer.publish(b"state")
        first.settle()
        # As if the guard had died between keeping a region and writing it down.
        first.run(first.background.keep("mgv-r999", [chunks[0].fd]))
        names = set(storage.bundles)
        first.run(first.server.close())
    assert set(storage.bundles) == names
    with ThreadedVault(storage=storage) as second:
        second.settle()
        assert "mgv-r999" not in storage.bundles
        assert (second.restored.lost, second.restored.unreadable) == ([], [])
        with second.standby() as reader, reader.open("r") as region:
            assert all(os.pread(fd, 4096, 0) == content(index) for index, fd in enumerate(region.fds))
            assert (region.metadata, region.sealed) == (b"m", (1, 2))
            assert reader.latest() == (1, 1, b"state")
            # This process still lives, and never said that it was done.
            with pytest.raises(client.LeaseHeldError):
                reader.acquire()
    storage.empty()
    close_chunks(chunks)
    assert opened_since(before) == []


@pytest.mark.parametrize("name", ["", "two words", "-x", "x" * 129, "line\n", "ä"])
def test_a_name_that_none_may_have_is_refused_in_words(vault: ThreadedVault, name: str) -> None:
    with pytest.raises(client.BadRequestError, match="letters, digits"):
        vault.session(name)
    with vault.session() as session, pytest.raises(client.BadRequestError, match="of a region"):
        session.create(name, [])
