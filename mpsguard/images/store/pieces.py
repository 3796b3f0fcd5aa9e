"""Pieces: a region's bytes, cut every 2 MiB, and their BLAKE3 digests."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from mpsguard.images.store.errors import BadPieceError

try:
    from blake3 import blake3
except ModuleNotFoundError as error:
    # All that handles images imports this module first.
    text = "images need blake3: pip install 'mpsguard[images]' in the environment of this program"
    raise ModuleNotFoundError(text, name=error.name) from None

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

PIECE_SIZE: Final = 2 << 20
"""Size of a piece in bytes; the last one of a region may be shorter."""

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
"""BLAKE3 of a piece, in lower-case hexadecimal digits."""


def bytes_of(data: ReadableBuffer | WriteableBuffer) -> memoryview:
    """Return a view of ``data`` as bytes.

    Raises:
        BadPieceError: it is empty or longer than `PIECE_SIZE`.
    """
    view = memoryview(data).cast("B")
    if not 1 <= len(view) <= PIECE_SIZE:
        raise BadPieceError(f"a piece has 1 to {PIECE_SIZE} bytes, not {len(view)}")
    return view


def digest_of(data: ReadableBuffer) -> Digest:
    """Return the digest of ``data``, of any length."""
    return blake3(data).hexdigest()


def piece_digest(data: ReadableBuffer) -> Digest | None:
    """Return the digest of a piece as a manifest has it: None if all its bytes are zero."""
    digest = digest_of(data)
    return None if digest == _zeros_digest(memoryview(data).nbytes) else digest


@lru_cache(maxsize=64)
def _zeros_digest(size: int) -> Digest:
    return digest_of(bytes(size))


def piece_count(size: int) -> int:
    """Return the number of pieces of a region of ``size`` bytes."""
    return -(-size // PIECE_SIZE)


def piece_size(size: int, index: int) -> int:
    """Return the size of a piece of a region of ``size`` bytes."""
    return min(PIECE_SIZE, size - index * PIECE_SIZE)
