"""Placement of tensors in a region, written by its creator and read by processes that map it. Pure; without PyTorch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from mpsguard.linux.decoding import decoded

VERSION: Final = 1
ALIGNMENT: Final = 512
"""Alignment of tensors in bytes, as in PyTorch's own allocator."""

SIZES: Final[Mapping[str, int]] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes of an element, by PyTorch's name of the type."""

Natural = Annotated[int, Meta(ge=0, lt=1 << 57)]


class TensorManifestError(Exception):
    """Not a manifest, or not one of this region."""


class Spec(msgspec.Struct, frozen=True):
    """A tensor to be placed: its type by PyTorch's name, and its shape."""

    dtype: str
    shape: tuple[Natural, ...]


class Placed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor in a region."""

    dtype: str
    shape: tuple[Natural, ...]
    strides: tuple[Natural, ...]
    """In elements."""
    offset: Natural
    """Bytes from the region's start to the tensor's first element."""

    @property
    def end(self) -> int:
        """Bytes from the region's start to the end of the tensor's last element."""
        return self.offset + extent(self.shape, self.strides) * SIZES[self.dtype]


class TensorManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All tensors of a region."""

    version: int
    size: Natural
    """Bytes of the region that the tensors need."""
    tensors: dict[str, Placed]
    """By name; several may share the same place."""


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of elements from the first to the last one, both included; 0 for an empty tensor."""
    if not all(shape):
        return 0
    return 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor in C order, in elements."""
    strides: list[int] = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def plan(specs: Mapping[str, Spec]) -> TensorManifest:
    """Place tensors back to back; raise ManifestError for a type that is not in `SIZES`."""
    tensors: dict[str, Placed] = {}
    at = 0
    for name, spec in specs.items():
        _check_type(name, spec.dtype)
        tensors[name] = Placed(spec.dtype, spec.shape, contiguous(spec.shape), at)
        at = -(-tensors[name].end // ALIGNMENT) * ALIGNMENT
    return TensorManifest(VERSION, max(at, 1), tensors)


def of(tensors: Mapping[str, Placed]) -> TensorManifest:
    """Return the manifest of placed tensors; raise ManifestError for a type that is not in `SIZES`."""
    for name, placed in tensors.items():
        _check_type(name, placed.dtype)
    return TensorManifest(VERSION, max(_ends(tensors.values()), default=1), dict(tensors))


_decoder: Final = msgspec.msgpack.Decoder(TensorManifest)


def encode(manifest: TensorManifest) -> bytes:
    """Return the encoded manifest, prefixed with its length."""
    body = msgspec.msgpack.encode(manifest)
    return len(body).to_bytes(8, "little") + body


def decode(data: bytes, size: int) -> TensorManifest:
    """Decode a manifest, which may have trailing bytes.

    Raises:
        ManifestError: it is invalid, or does not fit a region of ``size`` bytes.
    """
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 + length:
        raise TensorManifestError(f"{len(data)} bytes are not all of the manifest")
    try:
        manifest = decoded(_decoder.decode, data[8 : 8 + length])
    except msgspec.DecodeError as error:
        raise TensorManifestError(f"not a manifest: {error}") from None
    if manifest.version != VERSION:
        raise TensorManifestError(f"manifest of version {manifest.version}; this is {VERSION}")
    for name, placed in manifest.tensors.items():
        _check_type(name, placed.dtype)
        if len(placed.shape) != len(placed.strides):
            raise TensorManifestError(f"{name}: {len(placed.shape)} lengths and {len(placed.strides)} strides")
        if placed.offset % SIZES[placed.dtype] or placed.end > size:
            raise TensorManifestError(f"{name}: bytes {placed.offset} to {placed.end} of a region of {size}")
    return manifest


def _ends(tensors: Iterable[Placed]) -> list[int]:
    return [placed.end for placed in tensors]


def _check_type(name: str, dtype: str) -> None:
    if dtype not in SIZES:
        raise TensorManifestError(f"{name}: type {dtype!r}; known are {', '.join(SIZES)}")
