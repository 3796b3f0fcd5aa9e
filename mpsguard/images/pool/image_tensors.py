"""PyTorch tensors in an image's memory: needs PyTorch."""

from math import prod
from typing import Final

import torch

from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.image_addresses import ImageBytes
from mpsguard.images.pool.image_memory import places
from mpsguard.images.store.manifest import Manifest

_TYPES: Final = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "F32": torch.float32,
    "C64": torch.complex64,
    "F64": torch.float64,
    "I64": torch.int64,
}


def tensors_of(image: ImageBytes) -> dict[str, torch.Tensor]:
    """Return the tensors that the image's manifest names, in its memory, which they do not keep alive.

    Raises:
        PoolError: one of them is of a type that PyTorch does not have.
    """
    if image.backend.gpu is None:
        import numpy as np  # noqa: PLC0415 - the only way to host memory in PyTorch

        whole = torch.from_numpy(np.asarray(image))
    else:
        whole = torch.as_tensor(image, device=image.backend.device)
    return tensors_at(whole, image.manifest)


def tensors_at(whole: torch.Tensor, manifest: Manifest) -> dict[str, torch.Tensor]:
    """Return the tensors of an image that lies in ``whole``, bytes in one dimension, in the pool's form.

    Raises:
        PoolError: one of them is of a type that PyTorch does not have.
    """
    where = places(manifest)
    found = {}
    for tensor in manifest.tensors:
        dtype = _TYPES.get(tensor.dtype)
        if dtype is None:
            raise PoolError(f"tensor {tensor.name}: PyTorch has no type {tensor.dtype}")
        at = where[tensor.region].offset + tensor.offset
        if at % dtype.itemsize:
            raise PoolError(f"tensor {tensor.name}: it does not begin at a multiple of its type's size")
        size = prod(tensor.shape) * dtype.itemsize
        found[tensor.name] = whole[at : at + size].view(dtype).view(tensor.shape)
    return found
