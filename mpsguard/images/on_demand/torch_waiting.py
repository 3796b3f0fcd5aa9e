"""Lets the modules of a model wait for their parameters while these arrive."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from mpsguard.images.on_demand.arrival import ArrivingImage
from mpsguard.images.on_demand.destination import Piece, RegionAddresses
from mpsguard.images.store.pieces import PIECE_SIZE, piece_count
from mpsguard.vault.client.tensor_manifest import extent


class WaitingLayers:
    """Hooks on the modules of a model, each of which waits for the module's own parameters and buffers.

    They can be there before an image arrives, for `wait_for`; until then they do nothing. A module that uses the
    parameters of another one without calling it has to wait by itself (`ArrivingRegion.ready`). In a CUDA graph no hook
    runs.
    """

    def __init__(self, model: torch.nn.Module, regions: Mapping[str, RegionAddresses]) -> None:
        """Put them on all modules that have something in the regions.

        Args:
            model: its parameters have been bound to these addresses.
            regions: of the images to wait for, by name.
        """
        self._regions = dict(regions)
        self._awaited: _Awaited | None = None
        self._handles: list[Any] = []
        for module in model.modules():
            tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
            pieces = [piece for tensor in reversed(tensors) for piece in _pieces(tensor, regions)]
            if pieces:
                self._handles.append(module.register_forward_pre_hook(self._before_forward(pieces)))

    def wait_for(self, image: ArrivingImage, *, within: float = 60.0) -> None:
        """Have each module wait until what it needs of ``image`` is there, which arrives at these addresses.

        Args:
            image: instead of any other one before.
            within: seconds to wait for a module; then its call raises ArrivalError.

        Raises:
            ValueError: it arrives elsewhere.
        """
        there = _addresses(image)
        for name, region in self._regions.items():
            if there.get(name) != region:
                raise ValueError(f"region {name!r} is to arrive at {region}, and not at {there.get(name)}")
        self._awaited = _Awaited(image, within)

    def remove(self) -> None:
        """Remove the hooks; safe to call twice."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before_forward(self, pieces: list[Piece]) -> Callable[..., None]:
        there: _Awaited | None = None

        def before(_module: torch.nn.Module, _arguments: object) -> None:
            nonlocal there
            awaited = self._awaited
            # Several threads may call the module: each waits for all of it that had not come when it began.
            if awaited is not there and awaited is not None:
                awaited.image.wait_for(pieces, awaited.within)
                there = awaited

        return before


class _Awaited(NamedTuple):
    image: ArrivingImage
    within: float


def wait_for_layers(model: torch.nn.Module, image: ArrivingImage, *, within: float = 60.0) -> WaitingLayers:
    """Put `WaitingLayers` on a model, and have them wait for an image that its parameters have been bound to."""
    layers = WaitingLayers(model, _addresses(image))
    layers.wait_for(image, within=within)
    return layers


def _addresses(image: ArrivingImage) -> dict[str, RegionAddresses]:
    return {name: RegionAddresses(region.va, region.size) for name, region in image.regions.items()}


def _pieces(tensor: torch.Tensor, regions: Mapping[str, RegionAddresses]) -> list[Piece]:
    """Return the pieces of an image that a tensor needs."""
    size = extent(tuple(tensor.shape), tuple(tensor.stride())) * int(tensor.element_size())
    for name, region in regions.items():
        offset = int(tensor.data_ptr()) - region.va
        if size and offset >= 0 and offset + size <= region.size:
            return [(name, index) for index in range(offset // PIECE_SIZE, piece_count(offset + size))]
    return []
