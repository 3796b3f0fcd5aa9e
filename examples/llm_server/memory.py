"""Places weights and cache in the vault or, for comparison, in private memory."""

from contextlib import ExitStack
from enum import StrEnum
from typing import Any

import torch

from examples.llm_server import cache, model
from examples.llm_server.shapes import Shape
from mpsguard.client import LeaseRole, Session, UnknownRegionError
from mpsguard.vault.client.torch_regions import Spec, StateDict, create_state_dict, open_state_dict

WEIGHTS, CACHE = "weights", "cache"
"""The regions' names."""


class Mode(StrEnum):
    """What a process has prepared before it takes over."""

    VAULT = "vault"
    """Everything: weights and cache are mapped."""
    COLD = "cold"
    """Nothing: the model is created anew."""
    RELOAD = "reload"
    """A context, warm kernels, and the weights in pinned host memory, from which they are copied."""


class Loaded:
    """A model with weights and a cache; owns their memory."""

    def __init__(self, network: Any, slots: cache.SlotCache, owned: ExitStack, *, cached: bool) -> None:
        self.network = network
        self.slots = slots
        self.cached = cached
        """Whether the cache holds the sequences of the previous process."""
        self._owned = owned

    def close(self) -> None:
        """Release the tensors, and unmap mapped memory."""
        self.network = self.slots = None  # type: ignore[assignment]
        self._owned.close()


class OtherModelError(Exception):
    """The session belongs to another model, or another server."""


def from_vault(session: Session, shape: Shape, slots: int, seed: int, device: torch.device, *, make: bool) -> Loaded:
    """Map weights (read-only) and cache; with ``make``, create and fill missing ones. Raise OtherModelError."""
    with ExitStack() as owned:
        network = model.skeleton(shape)
        marks = f"{shape.name} seed {seed}".encode(), f"{shape.name} slots {slots}".encode()
        weights = _weights(session, network, seed, device, marks[0], make=make)
        owned.callback(_unmap, weights)
        places = _cache(session, cache.specs(shape, slots), device, marks[1], make=make)
        owned.callback(_unmap, places)
        return Loaded(network, cache.SlotCache(places.tensors), owned.pop_all(), cached=True)


def cold(shape: Shape, slots: int, seed: int, device: torch.device) -> Loaded:
    """Create weights and cache in private memory."""
    network = model.skeleton(shape)
    model.put(network, model.private(model.specs(network), device))
    model.fill(network, seed)
    places = model.private(cache.specs(shape, slots), device)
    _clear(places)
    return Loaded(network, cache.SlotCache(places), ExitStack(), cached=False)


class Reloader:
    """The weights in pinned host memory, from which a model on the GPU is created."""

    def __init__(self, loaded: Loaded, shape: Shape, slots: int, device: torch.device) -> None:
        """Copy the weights of a `cold` model to the host, and close the model."""
        self._shape, self._slots, self._device = shape, slots, device
        named = [*loaded.network.named_parameters(), *loaded.network.named_buffers()]
        wanted = model.specs(loaded.network)
        self._host = model.private(wanted, torch.device("cpu"), pinned=device.type == "cuda")
        for name, tensor in named:
            self._host[name].copy_(tensor)
        del named
        loaded.close()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        self._network = model.skeleton(shape)

    def load(self) -> Loaded:
        """Copy the weights to the GPU."""
        tensors = {name: tensor.to(self._device, non_blocking=True, copy=True) for name, tensor in self._host.items()}
        model.put(self._network, tensors)
        places = model.private(cache.specs(self._shape, self._slots), self._device)
        _clear(places)
        return Loaded(self._network, cache.SlotCache(places), ExitStack(), cached=False)


def _weights(session: Session, network: Any, seed: int, device: torch.device, mark: bytes, *, make: bool) -> StateDict:
    if _is_whole(session, WEIGHTS, mark) or not make:
        weights = open_state_dict(session, WEIGHTS, device)
        model.put(network, weights.tensors)
        return weights
    made = create_state_dict(session, WEIGHTS, model.specs(network), device, metadata=mark)
    model.put(network, made.tensors)
    model.fill(network, seed)
    _synchronize(device)
    session.seal(WEIGHTS)
    return made


def _cache(session: Session, wanted: dict[str, Spec], device: torch.device, mark: bytes, *, make: bool) -> StateDict:
    if _is_whole(session, CACHE, mark) or not make:
        return open_state_dict(session, CACHE, device, writable=True)
    made = create_state_dict(session, CACHE, wanted, device)
    _clear(made.tensors)
    _synchronize(device)
    session.set_metadata(CACHE, mark)
    return made


def _is_whole(session: Session, name: str, mark: bytes) -> bool:
    """Return whether the region exists and is finished; a writer releases an unfinished one. Raise OtherModelError."""
    try:
        found = session.describe(name)
    except UnknownRegionError:
        return False
    finished = found.is_sealed if name == WEIGHTS else bool(found.metadata)
    if found.metadata not in (mark, b""):
        raise OtherModelError(f"region {name!r} is of {found.metadata.decode()}, not of {mark.decode()}")
    if not finished and session.role is LeaseRole.WRITER:
        for part in (name, f"{name}.manifest"):
            if part in set(session.names()):
                session.release(part)
    return finished


def _clear(tensors: dict[str, torch.Tensor]) -> None:
    # Masked values are multiplied by zero, so they must not be NaN.
    for tensor in tensors.values():
        tensor.zero_()


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _unmap(state: StateDict) -> None:
    # PyTorch may still hold a tensor (a recorded graph); then the end of the process unmaps it.
    try:
        state.close()
    except BufferError:
        return
