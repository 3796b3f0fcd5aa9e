"""What an image consists of, and its form in a file: two lines of JSON; the first has the digest of the second.

A manifest is data from outside: from a disk, another user's store or another host. Whatever contradicts itself is
refused when it is decoded. Sizes, offsets and addresses are in bytes.
"""

import os
import socket
import sys
import time
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Annotated, Final, Self

import msgspec
from msgspec import Meta

import mpsguard
from mpsguard.images.store.errors import BadManifestError, DamagedError
from mpsguard.images.store.pieces import PIECE_SIZE, Digest, digest_of, piece_count, piece_size
from mpsguard.linux.decoding import decoded
from mpsguard.linux.processes.procfs import printable
from mpsguard.vault.wire.region import Address, ChunkSize, Gpu, Name, Uid

FORMAT: Final = 1
MOST_BYTES: Final = 128 << 20
"""Maximum size of a manifest's file in bytes; some two million pieces, or 4 TB."""
MOST_REGION_BYTES: Final = 1 << 48

DTYPE_BITS: Final = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
"""Bits of an element, by the name that safetensors gives the type; in the order in which safetensors sorts them."""

_MOST_NATURAL: Final = (1 << 57) - 1
_MOST_TEXT: Final = 4096
Natural = Annotated[int, Meta(ge=0, le=_MOST_NATURAL)]
Text = Annotated[str, Meta(max_length=_MOST_TEXT)]
_HEXADECIMAL: Final = b"0123456789abcdef"
_DigestText = Annotated[str, Meta(min_length=64, max_length=64)]
"""A `Digest`; `RegionImage` looks at the digits of all at once, since a start waits for the manifest."""


class Maker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What made an image; informative."""

    uid: Uid
    program: Text
    host: Text
    mpsguard: Text
    """Version of mpsguard."""

    def __post_init__(self) -> None:
        if not (self.program + self.host + self.mpsguard).isprintable():
            raise ValueError("the maker's text is not printable")

    @classmethod
    def this_process(cls, program: str | None = None) -> Self:
        """Return the maker that this process is; ``program``: for which it made the image, if that is another one."""
        name = program_name() if program is None else program
        return cls(os.geteuid(), name, printable(socket.gethostname()), mpsguard.__version__)


def program_name() -> str:
    """Return the name of this process's program: its file's, or with `python -m` its package's."""
    path = Path(sys.argv[0])
    return printable(path.parent.name if path.name == "__main__.py" else path.name)[:4096]


class RegionImage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A region of the vault at the moment of the image."""

    name: Name
    sizes: tuple[ChunkSize, ...]
    """Size of each of its chunks in the vault; their bytes, in this order, are the region's bytes."""
    pieces: tuple[_DigestText | None, ...]
    """`Digest` of every 2 MiB of the region's bytes; None where all are zero."""
    va: Address | None = None
    """Address in every process; None if it does not matter."""
    metadata: bytes = b""
    """The application's own."""
    sealed: tuple[Natural, ...] = ()
    """Indices of the sealed chunks, in ascending order."""
    gpu: Gpu | None = None
    """GPU that held it, by UUID; None for host memory."""

    def __post_init__(self) -> None:
        if not self.sizes:
            # One without bytes cannot be mapped, and the vault has none.
            raise ValueError(f"region {self.name}: no chunk")
        if self.size > MOST_REGION_BYTES:
            raise ValueError(f"region {self.name}: {self.size} bytes; {MOST_REGION_BYTES} is the most")
        if len(self.pieces) != piece_count(self.size):
            raise ValueError(f"region {self.name}: {len(self.pieces)} pieces for {self.size} bytes")
        if "".join(filter(None, self.pieces)).encode().translate(None, _HEXADECIMAL):
            raise ValueError(f"region {self.name}: pieces: a digest is not 64 lower-case hexadecimal digits")
        if list(self.sealed) != sorted(set(self.sealed)) or any(index >= len(self.sizes) for index in self.sealed):
            raise ValueError(f"region {self.name}: sealed chunks that it does not have, or out of order")

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return sum(self.sizes)

    def stored(self) -> Iterator[tuple[int, Digest, int]]:
        """Yield index, digest and size of each piece that is not all zero."""
        size = self.size
        for index, digest in enumerate(self.pieces):
            if digest is not None:
                yield index, digest, piece_size(size, index)


class TensorImage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor in a region, contiguous in C order."""

    name: Text
    dtype: str
    """As safetensors names it: a key of `DTYPE_BITS`."""
    shape: tuple[Natural, ...]
    region: Text
    """Name of a region of the same image."""
    offset: Natural
    """Bytes from the region's start."""

    def __post_init__(self) -> None:
        bits = DTYPE_BITS.get(self.dtype)
        if bits is None:
            raise ValueError(f"tensor {self.name}: type {self.dtype!r}; known are {', '.join(DTYPE_BITS)}")
        if len(self.shape) > 64:
            raise ValueError(f"tensor {self.name}: {len(self.shape)} dimensions; 64 is the most")
        # msgspec looks at these when it decodes alone: here, so that none is committed that cannot be read.
        if len(self.name) > _MOST_TEXT:
            raise ValueError(
                f"tensor {self.name[:64]}...: a name of {len(self.name)} characters; {_MOST_TEXT} is the most"
            )
        if not all(0 <= length <= _MOST_NATURAL for length in self.shape):
            raise ValueError(f"tensor {self.name}: a dimension that is negative, or above {_MOST_NATURAL}")
        if prod(self.shape) * bits % 8:
            raise ValueError(f"tensor {self.name}: its elements fill no whole number of bytes")

    @property
    def size(self) -> int:
        """Size in bytes."""
        return prod(self.shape) * DTYPE_BITS[self.dtype] // 8


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that an image is, besides the content of its pieces."""

    session: Name
    created: Annotated[float, Meta(ge=0, lt=1 << 37)]
    """UNIX time in seconds."""
    maker: Maker
    generation: Natural = 0
    """Generation of the forward state; 0 if there never was one."""
    sequence: Natural = 0
    """Sequence number of the forward state."""
    forward_state: bytes = b""
    regions: tuple[RegionImage, ...] = ()
    tensors: tuple[TensorImage, ...] = ()

    def __post_init__(self) -> None:
        sizes = {region.name: region.size for region in self.regions}
        if len(sizes) != len(self.regions):
            raise ValueError("two regions of one name")
        if len({tensor.name for tensor in self.tensors}) != len(self.tensors):
            raise ValueError("two tensors of one name")
        for tensor in self.tensors:
            if tensor.offset + tensor.size > sizes.get(tensor.region, -1):
                raise ValueError(f"tensor {tensor.name} does not lie in a region of this image")
        _check_sizes(self.regions)

    @classmethod
    def made_now(
        cls,
        session: str,
        regions: tuple[RegionImage, ...],
        *,
        tensors: tuple[TensorImage, ...] = (),
        generation: int = 0,
        sequence: int = 0,
        forward_state: bytes = b"",
        program: str | None = None,
    ) -> Self:
        """Return a manifest made by this process at this time; ``program``: as for `Maker.this_process`."""
        maker = Maker.this_process(program)
        return cls(session, time.time(), maker, generation, sequence, forward_state, regions, tensors)

    @property
    def size(self) -> int:
        """Bytes of all regions together."""
        return sum(region.size for region in self.regions)

    def pieces(self) -> dict[Digest, int]:
        """Return the size of each piece that the image needs, by digest, in the order of first use."""
        found: dict[Digest, int] = {}
        for region in self.regions:
            # Not by `stored`: a large session has tens of thousands, and a migration stands still meanwhile.
            found.update(dict.fromkeys(filter(None, region.pieces[:-1]), PIECE_SIZE))
            if region.pieces and (last := region.pieces[-1]) is not None:
                found[last] = piece_size(region.size, len(region.pieces) - 1)
        return found

    def place_of(self, digest: Digest) -> str | None:
        """Return the name of the first region that needs a piece."""
        return next((region.name for region in self.regions if digest in region.pieces), None)


def _check_sizes(regions: tuple[RegionImage, ...]) -> None:
    """Refuse a piece that stands for two sizes; only a region's last one may be shorter than `PIECE_SIZE`."""
    whole: set[Digest | None] = set()
    short: dict[Digest, int] = {}
    for region in regions:
        rest = region.size % PIECE_SIZE
        whole.update(region.pieces[:-1] if rest else region.pieces)
        last = region.pieces[-1] if rest else None
        if last is not None and short.setdefault(last, rest) != rest:
            raise ValueError(f"region {region.name}: its last piece has the digest of one with another size")
    if both := whole & short.keys():
        raise ValueError(f"a last piece has the digest of one with another size: {min(map(str, both))}")


class _FirstLine(msgspec.Struct, frozen=True):
    """First line of the file."""

    format: int
    blake3: str = ""
    """Digest of all that follows this line."""


_first_line_decoder: Final = msgspec.json.Decoder(_FirstLine)
_decoder: Final = msgspec.json.Decoder(Manifest)
_HEAD_BYTES: Final = 256


def encode(manifest: Manifest) -> bytes:
    """Return the content of the manifest's file.

    Raises:
        BadManifestError: it would be larger than `MOST_BYTES`.
    """
    body = msgspec.json.encode(manifest) + b"\n"
    data = msgspec.json.encode(_FirstLine(FORMAT, digest_of(body))) + b"\n" + body
    if len(data) > MOST_BYTES:
        raise BadManifestError(f"the manifest takes {len(data)} bytes; {MOST_BYTES} is the most")
    return data


def decode(data: bytes, name: str) -> Manifest:
    """Decode a manifest's file; ``name`` is the image's, for the texts of errors.

    Raises:
        DamagedError: it is not what was written.
        BadManifestError: it is of another version, or contradicts itself.
    """
    line, _, body = data[:_HEAD_BYTES].partition(b"\n")
    try:
        head = decoded(_first_line_decoder.decode, line)
    except msgspec.DecodeError:
        raise DamagedError(f"image {name}: its manifest is damaged (first line)") from None
    if head.format != FORMAT:
        raise BadManifestError(f"image {name}: format {head.format}; this program reads format {FORMAT}")
    body = data[len(line) + 1 :]
    if digest_of(body) != head.blake3:
        raise DamagedError(f"image {name}: its manifest is damaged (checksum)")
    try:
        return decoded(_decoder.decode, body)
    except msgspec.DecodeError as error:
        # It may name a tensor, with whatever the name has for a terminal.
        raise BadManifestError(f"image {name}: {printable(str(error))}") from None
