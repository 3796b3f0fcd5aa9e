"""Lets the modules of a model wait for their parameters while these arrive."""

from collections.abc import Callable
from typing import Any

import torch

from mpsguard.client.on_demand.arrival import ArrivingImage, ArrivingRegion
from mpsguard.client.tensor_manifest import extent


class WaitingLayers:
    """The hooks of `wait_for_layers`."""

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def add(self, module: torch.nn.Module, places: list[tuple[ArrivingRegion, int, int]], within: float) -> None:
        """Let a module wait before each forward pass, until what it needs is there."""
        self._handles.append(module.register_forward_pre_hook(_before_forward(places, within)))

    def remove(self) -> None:
        """Remove the hooks; safe to call twice."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


def wait_for_layers(model: torch.nn.Module, image: ArrivingImage, *, within: float = 60.0) -> WaitingLayers:
    """Let each module wait for its own parameters and buffers, as far as they lie in an arriving image.

    A module that uses the parameters of another one without calling it has to wait by itself (`ArrivingRegion.ready`).
    In a CUDA graph no hook runs.

    Args:
        model: its parameters have been bound to the image's memory.
        image: which arrives.
        within: seconds to wait for a module; then its call raises ArrivalError.
    """
    layers = WaitingLayers()
    for module in model.modules():
        tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        places = [place for tensor in tensors if (place := _place(tensor, image)) is not None]
        if places:
            layers.add(module, places, within)
    return layers


def _place(tensor: torch.Tensor, image: ArrivingImage) -> tuple[ArrivingRegion, int, int] | None:
    """Return where a tensor lies in the image: region, offset and size in bytes."""
    size = extent(tuple(tensor.shape), tuple(tensor.stride())) * int(tensor.element_size())
    for region in image.regions.values():
        offset = int(tensor.data_ptr()) - region.va
        if size and offset >= 0 and offset + size <= region.size:
            return region, offset, size
    return None


def _before_forward(places: list[tuple[ArrivingRegion, int, int]], within: float) -> Callable[..., None]:
    left = tuple(places)

    def before(_module: torch.nn.Module, _arguments: object) -> None:
        nonlocal left
        # Several threads may call the module: each waits for all that had not come when it began.
        for region, offset, size in reversed(left):
            region.ready(offset, size, within=within)
        left = ()

    return before
