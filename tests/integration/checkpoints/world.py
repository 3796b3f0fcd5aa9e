"""What the tests of checkpoints stand on: regions with known content, and images compared byte for byte."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpsguard.client import Session
from mpsguard.images import checkpoints
from mpsguard.images.store.store import ImageStore
from mpsguard.vault.client.mapped import HostBackend, Memory, create
from tests.integration.vault.running import ThreadedVault

PIECE = 2 << 20


class World:
    """A vault and a store."""

    def __init__(self, vault: ThreadedVault, store: Path) -> None:
        self.vault = vault
        self.store = store

    @contextmanager
    def session(self, name: str = "s", **options: Any) -> Iterator[Session]:
        """A writer that takes checkpoints into the store."""
        with self.vault.session(name) as session:
            wanted: dict[str, Any] = {"store": self.store, "buffers": 64 << 20}
            checkpoints.of(session, **(wanted | options))
            yield session

    def image(self, name: str) -> dict[str, bytes]:
        """The content of an image's regions."""
        with ImageStore(self.store) as store, store.open(name) as image:
            found = {}
            for region in image.manifest.regions:
                content = bytearray(region.size)
                view = memoryview(content)
                for index, digest in enumerate(region.pieces):
                    image.read_into(digest, view[index * PIECE : (index + 1) * PIECE])
                found[region.name] = bytes(content)
            return found

    def state(self, name: str) -> bytes:
        """The forward state of an image."""
        with ImageStore(self.store) as store, store.open(name) as image:
            return image.manifest.forward_state

    def names(self) -> list[str]:
        """The images in the store."""
        with ImageStore(self.store) as store:
            return store.names()


@contextmanager
def region(session: Session, name: str, content: bytes, **options: Any) -> Iterator[Memory]:
    """A region of host memory with that content."""
    with create(session, HostBackend(), name, len(content), **options) as memory:
        memory.view().write(content)
        yield memory


def content_of(memory: Memory) -> bytes:
    return memory.view().read()
