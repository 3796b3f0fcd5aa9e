"""Images that other users and other hosts give: manifests from their stores, and streams."""

import io
import tempfile
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from fault_injection.fuzzing.mutation import changed, changed_text, index
from fault_injection.fuzzing.surface import BrokenPromiseError, Surface
from mpsguard.images.store import manifest as manifests
from mpsguard.images.store import transfer
from mpsguard.images.store.errors import ImageError
from mpsguard.images.store.manifest import Maker, Manifest, RegionImage, TensorImage
from mpsguard.images.store.pieces import PIECE_SIZE, digest_of
from mpsguard.images.store.store import ImageStore
from mpsguard.images.store.stream_frames import GREETING, Complete, Content, Declined, Frame, Offer, Wanted, write_frame

_PIECES: Final = (b"first piece", b"second", b"3")
_MANIFEST: Final = Manifest(
    "llm",
    1_700_000_000.5,
    Maker(1000, "train", "node-1", "0.1.0"),
    3,
    17,
    b"\0state",
    (
        RegionImage("w", (11,), (digest_of(_PIECES[0]),), va=1 << 45, metadata=b"\0\xff", gpu="GPU-1"),
        RegionImage("kv", (6,), (digest_of(_PIECES[1]),), sealed=(0,)),
        RegionImage("zero", (PIECE_SIZE, 1), (None, digest_of(_PIECES[2]))),
    ),
    (TensorImage("a.weight", "BF16", (2, 2), "w", 2), TensorImage("b", "F8_E4M3", (6,), "kv", 0)),
)
_BODY: Final = msgspec.json.encode(_MANIFEST) + b"\n"
_FILE: Final = manifests.encode(_MANIFEST)


def _manifest(chance: Random) -> bytes:
    """A file: changed, or with changed content under the digest that belongs to it."""
    if chance.random() < 0.3:
        return changed(chance, _FILE)
    body = changed_text(chance, _BODY, (_BODY,))
    return msgspec.json.encode({"format": 1, "blake3": digest_of(body)}) + b"\n" + body


class Manifests(Surface[bytes]):
    """From a file to a manifest that agrees with itself."""

    name = "image manifests"
    share = 100

    def make(self, chance: Random) -> bytes:
        """As the file of a foreign store may be."""
        return _manifest(chance)

    def feed(self, case: bytes) -> None:
        """Read it, and what is taken of it further on."""
        try:
            manifest = manifests.decode(case, "a")
        except ImageError:
            return
        if manifests.decode(manifests.encode(manifest), "a") != manifest:
            raise BrokenPromiseError("written and read again it is another one")
        sizes = {region.name: region.size for region in manifest.regions}
        if any(tensor.offset + tensor.size > sizes[tensor.region] for tensor in manifest.tensors):
            raise BrokenPromiseError("a tensor reaches beyond its region")
        if any(not 1 <= size <= PIECE_SIZE for size in manifest.pieces().values()):
            raise BrokenPromiseError("a piece has no size that a piece may have")


class Streams(Surface[bytes]):
    """The receiver of a stream, with a store of its own."""

    name = "image streams"
    share = 30

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="mpsguard-fuzz-")
        self._path = Path(self._directory.name) / "store"
        self._store = ImageStore(self._path)

    def make(self, chance: Random) -> bytes:
        """Messages of both directions in some order, most often the right one, and bytes of them changed."""
        whole = chance.random() < 0.3
        offer = Offer("llm", _FILE if whole else _manifest(chance))
        frames: list[Frame] = [offer, *(Content(piece) for piece in _PIECES), Complete()]
        if chance.random() < 0.3:
            others = (Wanted(b"\x07"), Declined("no"), offer, Content(b"another"), Content(b""), Complete())
            frames.insert(index(chance, len(frames) + 1), others[index(chance, len(others))])
        if chance.random() < 0.3:
            frames.pop(index(chance, len(frames)))
        stream = io.BytesIO()
        stream.write(GREETING)
        for frame in frames:
            write_frame(stream, frame)
        data = stream.getvalue()
        return data if chance.random() < 0.3 else changed(chance, data)

    def feed(self, case: bytes) -> None:
        """Receive it: there is a whole image afterwards, or none."""
        try:
            transfer.receive(self._store, io.BytesIO(case), back=io.BytesIO())
        except ImageError:
            if self._store.names():
                raise BrokenPromiseError("an image of a stream that was refused") from None
            return
        (name,) = self._store.names()
        with self._store.open(name) as image:
            if list(image.verify()):
                raise BrokenPromiseError("an image that is not whole")
        self._store.remove(name)

    def check(self) -> None:
        """Nothing is left but what an image has needed."""
        self._store.collect()
        left = [path for kind in ("pieces", "drafts", "removed", "images") for path in (self._path / kind).rglob("*")]
        if any(path.is_file() for path in left):
            raise BrokenPromiseError(f"{len(left)} files are left")

    def close(self) -> None:
        """Give everything back."""
        self._store.close()
        self._directory.cleanup()
