"""Sealed regions: digested once, ahead of the cut."""

import os
from contextlib import ExitStack

from blake3 import blake3

from mpsguard.images import checkpoints
from mpsguard.images.checkpoints.checkpoint import CheckpointState
from mpsguard.images.checkpoints.piece_table import DIGEST
from mpsguard.images.checkpoints.session_regions import SessionRegions
from mpsguard.images.checkpoints.sources import SLICE, HostSource
from mpsguard.linux.descriptors import memfd
from mpsguard.vault.client.mapped import HostBackend, create
from mpsguard.vault.client.session_memory import MappedMemory
from tests.harness.waiting import PATIENCE, wait_for
from tests.integration.checkpoints.world import PIECE, World, content_of, region
from tests.integration.vault.running import ThreadedVault


def test_sealed_regions_are_part_of_it(world: World) -> None:
    with world.session() as session, region(session, "weights", os.urandom(3 * PIECE)) as weights:
        weights.region.seal()
        session.publish(b"1")
        checkpoints.of(session).take("one").wait(PATIENCE)
        assert checkpoints.of(session).take("two").wait(PATIENCE).copied == 0
        assert world.image("two") == {"weights": content_of(weights)}


def test_much_that_is_sealed_is_digested_in_publications_before_that_of_the_cut(world: World) -> None:
    with world.session() as session, region(session, "now", os.urandom(PIECE)) as now:
        session.publish(b"0")
        checkpoints.of(session).take("ready").wait(PATIENCE)
        with region(session, "weights", bytes(SLICE * PIECE) + os.urandom(PIECE)) as weights:
            weights.region.seal()
            checkpoint = checkpoints.of(session).arm("one")
            # Without one before it nothing says how often the program publishes: this one digests one slice.
            session.publish(b"1")
            assert checkpoint.state is CheckpointState.ARMED
            # What is left is one piece, which the cut digests.
            session.publish(b"2")
            checkpoint.wait(PATIENCE)
            assert world.state("one") == b"2"
            assert world.image("one") == {"now": content_of(now), "weights": content_of(weights)}


def test_a_program_that_seals_something_with_each_publication_gets_its_checkpoint(world: World) -> None:
    with world.session() as session, ExitStack() as regions:
        taking = checkpoints.of(session)
        taking.start()
        wait_for("the copier", lambda: taking.is_ready)
        checkpoint = taking.arm("one")
        sealed = regions.enter_context(region(session, "sealed", os.urandom(4096)))
        sealed.region.seal()
        session.publish(b"1")
        assert checkpoint.tries == 1
        checkpoint.wait(PATIENCE)
        assert world.image("one") == {"sealed": content_of(sealed)}


class LateSource(HostSource):
    """Memory of a region, with a write that the program began before it sealed the region."""

    def __init__(self, memory: MappedMemory, late: bytes) -> None:
        self.fd = memfd.create("late", memory.size, fixed=True)
        super().__init__((self.fd,), (memory.size,))
        self._late = late

    def settle(self) -> None:
        """See `RegionSource.settle`."""
        os.pwrite(self.fd, self._late, 0)


def test_what_is_sealed_is_digested_when_writes_that_were_begun_before_have_ended() -> None:
    """On a GPU a kernel that was launched before may not have ended."""
    backend = HostBackend()
    backend.gpu = "GPU-00000000-0000-0000-0000-000000000001"
    late = os.urandom(PIECE)
    with ThreadedVault(simulated=True) as vault:
        with vault.session() as session, create(session, backend, "weights", 2 * PIECE) as weights:
            weights.region.seal()
            regions = SessionRegions(session, lambda memory: LateSource(memory, late))
            assert regions.undigested == 2
            regions.digest_some_sealed(1.0)
            assert regions.undigested == 0
            digests = bytearray(2 * DIGEST)
            regions.digest(memoryview(digests))
            assert bytes(digests) == blake3(late).digest() + blake3(bytes(PIECE)).digest()
            regions.close()
        vault.storage.empty()
