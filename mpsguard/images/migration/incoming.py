"""What has come of a session so far: memory on the new GPU, filled round by round from images."""

from collections.abc import Callable
from contextlib import ExitStack

from mpsguard.images.checkpoints.restore import fill, give, targets
from mpsguard.images.checkpoints.targets import Target
from mpsguard.images.store.image import Image
from mpsguard.images.store.manifest import Manifest, RegionImage
from mpsguard.vault.client.session import Session


class IncomingMemory:
    """Owns the memory until it is closed; what was given to a session stays there."""

    def __init__(self, device: int) -> None:
        """Fill regions of GPU memory on the GPU with that ordinal of CUDA."""
        self._undo = ExitStack()
        self._make: Callable[[RegionImage], Target] = targets(device, self._undo, in_place=True)
        self._have: dict[str, tuple[RegionImage, Target]] = {}
        self.manifest: Manifest | None = None
        """Of the image that all memory is equal to; None: of none."""

    def update(self, image: Image) -> int:
        """Bring what differs from an image; return its bytes.

        Raises:
            DamagedError: the image is damaged.
            RestoreError: a region has a name of mpsguard's own.
            AddressTakenError: this process uses a region's addresses for something else.
            OSError, CudaError: no room for a region.
        """
        self.manifest = None
        regions = image.manifest.regions
        places = {region.name: _place(region) for region in regions}
        have, self._have = self._have, {}
        for name, (old, target) in have.items():
            if places.get(name) != _place(old):
                # At once: another region may be at its addresses now.
                target.close()
        before = {name: old for name, (old, _) in have.items() if places.get(name) == _place(old)}
        wanted = {
            region.name: (region, have[region.name][1] if region.name in before else self._make(region))
            for region in regions
        }
        copied = fill(image, list(wanted.values()), before)
        self._have = wanted
        self.manifest = image.manifest
        return copied

    def give_to(self, session: Session) -> None:
        """Make the regions in a session; its forward state is published by the caller. Raise VaultError."""
        for region, target in self._have.values():
            give(session, region, target)

    def keep_mapped(self, session: Session) -> None:
        """Leave to a session, which has the regions now, what is mapped of them at their addresses."""
        for region, target in self._have.values():
            if (mapping := target.keep_mapped()) is not None:
                session.memory.keep_ahead(region.name, mapping)

    def close(self) -> None:
        """Give back what was left to no session."""
        self._undo.close()


def _place(region: RegionImage) -> tuple[object, ...]:
    return region.sizes, region.gpu, region.va
