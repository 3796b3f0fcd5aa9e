"""The tensors of an image, from the manifests that `mpsguard.vault.client.torch_regions` puts beside regions."""

from collections import Counter
from typing import Final

from blake3 import blake3

from mpsguard.images.copier.run import CheckpointRun, RunMemory
from mpsguard.images.store.manifest import TensorImage
from mpsguard.vault.client import tensor_manifest
from mpsguard.vault.client.tensor_manifest import TensorManifestError, contiguous

SUFFIX: Final = ".manifest"
"""What the name of a manifest's region ends with, behind that of the tensors' region."""
_MOST: Final = 64 << 20
"""Bytes of a manifest that is read."""
DTYPES: Final = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
}
"""PyTorch's names of types, and those that safetensors gives them."""


def tensor_images(run: CheckpointRun, memory: RunMemory) -> tuple[TensorImage, ...]:
    """Return the tensors of all regions that have a manifest, but for those that no image, or safetensors, could have.

    A tensor has the name that it has in its region, and that of the region before it if two have one name.
    """
    spans = {span.name: span for span, _ in memory.regions}
    found: list[TensorImage] = []
    for span, source in memory.regions:
        region = spans.get(span.name.removesuffix(SUFFIX))
        if not span.name.endswith(SUFFIX) or region is None or span.size > _MOST:
            continue
        content = memoryview(bytearray(span.size))
        for number in range(span.first, span.end):
            offset, size = span.bounds(number)
            source.read(offset, content[offset : offset + size], 0)
            if blake3(content[offset : offset + size]).digest() != run.digests[number]:
                break
        else:
            found += _of(bytes(content), region.name, region.size)
    names = Counter(tensor.name for tensor in found)
    named: dict[str, TensorImage] = {}
    for tensor in found:
        if names[tensor.name] == 1:
            named.setdefault(tensor.name, tensor)
        elif (longer := _made(f"{tensor.region}/{tensor.name}", *_rest(tensor))) is not None:
            named.setdefault(longer.name, longer)
    return tuple(named.values())


def _rest(tensor: TensorImage) -> tuple[str, tuple[int, ...], str, int]:
    return tensor.dtype, tensor.shape, tensor.region, tensor.offset


def _made(name: str, dtype: str, shape: tuple[int, ...], region: str, offset: int) -> TensorImage | None:
    try:
        return TensorImage(name, dtype, shape, region, offset)
    except ValueError:
        return None


def _of(content: bytes, region: str, size: int) -> list[TensorImage]:
    try:
        manifest = tensor_manifest.decode(content, size)
    except TensorManifestError:
        # Some other region that is named so.
        return []
    made = [
        _made(name, DTYPES[placed.dtype], placed.shape, region, placed.offset)
        for name, placed in manifest.tensors.items()
        if placed.dtype in DTYPES and placed.strides == contiguous(placed.shape)
    ]
    return [tensor for tensor in made if tensor is not None]
