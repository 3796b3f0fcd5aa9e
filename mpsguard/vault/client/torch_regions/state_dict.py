"""Named tensors in a region, with their manifest in another region (``NAME.manifest``, host memory)."""

import os
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

import torch

from mpsguard.linux.descriptors import memfd
from mpsguard.vault.client import mapped
from mpsguard.vault.client import tensor_manifest as manifest
from mpsguard.vault.client.cuda import CudaBackend
from mpsguard.vault.client.mapped import Backend, HostBackend, Memory
from mpsguard.vault.client.region import Chunk
from mpsguard.vault.client.session import Session
from mpsguard.vault.client.tensor_manifest import Placed, Spec, TensorManifest, TensorManifestError

SUFFIX = ".manifest"


class StateDict:
    """Named tensors in a region's memory; owns the mapping. Returned by `create_state_dict` and `open_state_dict`."""

    def __init__(self, memory: Memory, tensors: dict[str, torch.Tensor]) -> None:
        self.memory = memory
        self.tensors = tensors
        """May include copies, for names that were passed as private."""

    def close(self) -> None:
        """Drop the tensors and unmap; raise BufferError while another reference to a tensor is alive."""
        self.tensors = {}
        self.memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        if kind is None:
            self.close()
            return
        # The exception's frames may still use the memory.
        with suppress(Exception):
            self.close()


def backend_of(device: torch.device | str) -> Backend:
    """Return the backend for a device: ``cuda`` (the first GPU), ``cuda:N``, or ``cpu``; ValueError for others."""
    wanted = torch.device(device)
    if wanted.type == "cuda":
        return CudaBackend(wanted.index or 0)
    if wanted.type == "cpu":
        return HostBackend()
    raise ValueError(f"device {str(device)!r}; regions lie on cuda or cpu")


def create_state_dict(
    session: Session,
    name: str,
    specs: Mapping[str, Spec],
    device: torch.device | str,
    *,
    largest: int | None = None,
    metadata: bytes = b"",
) -> StateDict:
    """Create a region for these tensors, with undefined content, and its manifest.

    ``largest``, ``metadata`` and the exceptions: see `mpsguard.vault.client.mapped.create`.
    """
    plan = manifest.plan(specs)
    memory = mapped.create(session, backend_of(device), name, plan.size, largest=largest, metadata=metadata)
    try:
        _store(session, name, plan)
        return StateDict(memory, tensors_at(memory, plan))
    except BaseException:
        with suppress(Exception):
            session.release(name)
            memory.close()
        raise


def save_state_dict(session: Session, memory: Memory, tensors: Mapping[str, torch.Tensor]) -> TensorManifest:
    """Wait for the work that fills the tensors, and save their manifest.

    To be called once for each region, by its writer, for tensors that a `RegionPool` placed there.

    Raises:
        ManifestError: a tensor does not lie in the region.
    """
    found = manifest.of({name: _placed(memory, name, tensor) for name, tensor in tensors.items()})
    if memory.backend.gpu is not None:
        torch.cuda.synchronize(memory.backend.device)
    _store(session, memory.name, found)
    return found


def open_state_dict(
    session: Session,
    name: str,
    device: torch.device | str,
    *,
    writable: bool = False,
    private: Collection[str] = (),
) -> StateDict:
    """Return the tensors of a region, in the same memory and at the same addresses as in its creator.

    Args:
        session: the session.
        name: name of the region.
        device: PyTorch's device.
        writable: if False, the memory is mapped read-only. The tensors do not know that: a kernel that writes to one
            faults, and ends every client of its MPS server.
        private: names of tensors to copy instead, because this process modifies them.

    Raises:
        ManifestError: a name is unknown, or the manifest does not fit the region.
        Exception: as `mpsguard.vault.client.mapped.attach`.
    """
    with ExitStack() as undo:
        memory = mapped.attach(session, backend_of(device), name, writable=writable)
        undo.callback(memory.close)
        found = manifest.decode(_read_all(session, name + SUFFIX), memory.size)
        unknown = sorted(set(private) - set(found.tensors))
        if unknown:
            raise TensorManifestError(f"region {name!r} has no tensor {unknown[0]!r}")
        tensors = tensors_at(memory, found)
        for copied in private:
            tensors[copied] = tensors[copied].clone()
        undo.pop_all()
        return StateDict(memory, tensors)


def tensors_at(memory: Memory, found: TensorManifest) -> dict[str, torch.Tensor]:
    """Return tensors in the memory; the memory cannot be closed while one of them is alive."""
    # Declared writable: PyTorch has no read-only tensors, and its warning about NumPy arrays may be set to an error.
    view = memory.view(readonly=False)
    if memory.backend.gpu is not None:
        whole = torch.as_tensor(view, device=memory.backend.device)
    else:
        import numpy as np  # noqa: PLC0415 - the only way to host memory in PyTorch that keeps its owner alive

        whole = torch.from_numpy(np.asarray(view))
    if whole.data_ptr() != memory.va:
        raise TensorManifestError(f"PyTorch copied region {memory.name!r} instead of using it")
    return {name: _tensor(whole, placed) for name, placed in found.tensors.items()}


def _tensor(whole: torch.Tensor, placed: Placed) -> torch.Tensor:
    if placed.end == placed.offset:
        return torch.empty(placed.shape, dtype=getattr(torch, placed.dtype), device=whole.device)
    flat = whole[placed.offset : placed.end].view(getattr(torch, placed.dtype))
    return flat.as_strided(placed.shape, placed.strides)


def _placed(memory: Memory, name: str, tensor: torch.Tensor) -> Placed:
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    dtype = str(tensor.dtype).removeprefix("torch.")
    offset = tensor.data_ptr() - memory.va if tensor.numel() else 0
    placed = Placed(dtype, shape, strides, max(offset, 0))
    inside = dtype in manifest.SIZES and offset >= 0 and placed.end <= memory.size
    if not inside or str(tensor.device) != memory.backend.device:
        raise TensorManifestError(f"{name} ({dtype}, {tensor.device}) does not lie in region {memory.name!r}")
    return placed


def _store(session: Session, name: str, found: TensorManifest) -> None:
    data = manifest.encode(found)
    fd = memfd.holding("mpsguard-manifest", data)
    try:
        session.create(name + SUFFIX, [Chunk(fd, len(data))]).seal()
    finally:
        os.close(fd)


def _read_all(session: Session, name: str) -> bytes:
    with session.open(name) as region:
        if len(region.fds) != 1 or region.layout.gpu is not None:
            raise TensorManifestError(f"region {name!r} is no manifest")
        return os.pread(region.fds[0], region.layout.size, 0)
