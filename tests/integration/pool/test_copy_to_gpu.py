"""A copy to the memory of a GPU, for which host memory stands, when the pool ends in its last step."""

from pathlib import Path

import pytest

from mpsguard.images.pool.device_image import copy_to_gpu
from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.image_addresses import ImageAddresses
from mpsguard.vault.client.mapped.host import HostBackend
from tests.integration.pool.running import MIB, RunningPool, running
from tests.integration.pool.test_device_memory import MEMORY, program


class KillingBackend(HostBackend):
    """Kills the pool when the copy has ended; knows what is allocated."""

    def __init__(self, pool: RunningPool) -> None:
        super().__init__()
        self.allocated: set[int] = set()
        self._pool = pool

    def settle(self) -> None:
        """See `CopyingBackend.settle`."""
        self._pool.kill()

    def make(self, size: int) -> int:
        """See `Backend.make`."""
        handle = super().make(size)
        self.allocated.add(handle)
        return handle

    def drop(self, handle: int) -> None:
        """See `Backend.drop`."""
        self.allocated.remove(handle)
        super().drop(handle)


def test_nothing_is_left_of_a_copy_if_the_pool_ends_when_it_is_made(tmp_path: Path) -> None:
    with running(tmp_path, *MEMORY) as pool, program(pool) as mine:
        pool.make("a", 5 * MIB)
        image, backend = mine.image("a"), KillingBackend(pool)
        with ImageAddresses(backend, image.manifest) as addresses:
            with pytest.raises(PoolError):
                copy_to_gpu(mine.tiers._replace(backend=backend), image, addresses=addresses)
            assert backend.allocated == set()
            # They can be used again.
            assert addresses.take(addresses.size) == addresses.va
        pool.start(*MEMORY)
