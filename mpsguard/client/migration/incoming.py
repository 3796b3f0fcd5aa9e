"""What has come of a session so far: memory on the new GPU, filled round by round from images."""

from collections.abc import Callable
from contextlib import ExitStack

from mpsguard.client.checkpoints.restore import fill, give, targets
from mpsguard.client.checkpoints.targets import Target
from mpsguard.client.session import Session
from mpsguard.images.image import Image
from mpsguard.images.manifest import Manifest, RegionImage


class IncomingMemory:
    """Owns the memory until it is closed; what was given to a session stays there."""

    def __init__(self, device: int) -> None:
        """Fill regions of GPU memory on the GPU with that ordinal of CUDA."""
        self._undo = ExitStack()
        self._make: Callable[[RegionImage], Target] = targets(device, self._undo)
        self._have: dict[str, tuple[RegionImage, Target]] = {}
        self.manifest: Manifest | None = None
        """Of the image that all memory is equal to; None: of none."""

    def update(self, image: Image) -> int:
        """Bring what differs from an image; return its bytes.

        Raises:
            DamagedError: the image is damaged.
            RestoreError: a region has a name of mpsguard's own.
            OSError, CudaError: no room for a region.
        """
        self.manifest = None
        wanted: dict[str, tuple[RegionImage, Target]] = {}
        before: dict[str, RegionImage] = {}
        for region in image.manifest.regions:
            found = self._have.get(region.name)
            if found is not None and (found[0].sizes, found[0].gpu) == (region.sizes, region.gpu):
                before[region.name] = found[0]
                wanted[region.name] = region, found[1]
            else:
                # Memory of a region that is gone stays until the end: that is rare, and short.
                wanted[region.name] = region, self._make(region)
        self._have = {}
        copied = fill(image, list(wanted.values()), before)
        self._have = wanted
        self.manifest = image.manifest
        return copied

    def give_to(self, session: Session) -> None:
        """Make the regions in a session; its forward state is published by the caller. Raise VaultError."""
        for region, target in self._have.values():
            give(session, region, target)

    def close(self) -> None:
        """Give back what was not given to a session."""
        self._undo.close()
