"""The pieces of a committed image that a process relies on in its next draft, without asking the store for each."""

import os
from collections.abc import Mapping
from typing import Final

from mpsguard.images.store.pieces import Digest
from mpsguard.linux.closing import Closing


class HeldPieces(Closing):
    """Owns a locked descriptor of the manifest: as long as it is open, no collector removes the image's pieces."""

    def __init__(self, fd: int, sizes: Mapping[Digest, int], mark: int) -> None:
        """Take ownership of ``fd``."""
        self._fd = fd
        self.sizes: Final = sizes
        """Size in bytes of each piece, by digest; all of them are on disk."""
        self.mark: Final = mark
        """`PieceFiles.damage_mark` when the image's draft began: behind another one, nothing here is relied on."""

    def close(self) -> None:
        """Let the pieces go; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
