"""Announces what a training step writes, so that checkpoints can be taken while it runs.

    from mpsguard.images import checkpoints

    announce_writes([memory], optimizer=optimizer, model=model)
    checkpoints.of(session).every(600, "run-1")

What an optimizer's step writes are its parameters and its state; what a forward pass writes are buffers, such as the
running statistics of BatchNorm. Anything else that writes to a region has to be announced by `Memory.writing`. A
forgotten write costs a checkpoint, which is refused, and never a wrong image.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from mpsguard.vault.client.mapped import Memory
from mpsguard.vault.client.tensor_manifest import extent

_JOIN = 2 << 20
"""Bytes: writes that are nearer to each other are announced as one, since checkpoints know pieces of that size only."""


class AnnouncedWrites:
    """The hooks of `announce_writes`."""

    def __init__(self, memories: Sequence[Memory]) -> None:
        self._memories = tuple(memories)
        self._handles: list[Any] = []

    def of_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Announce parameters and state before each step."""
        known: tuple[int, list[tuple[Memory, int, int]]] = (-1, [])

        def before(*_: object) -> None:
            nonlocal known
            # The state is made by the first step, and parameters can be added: then there are more tensors.
            count = sum(len(group["params"]) for group in optimizer.param_groups)
            count += sum(len(values) for values in optimizer.state.values())
            if known[0] != count:
                known = count, ranges(self._memories, _written_by(optimizer))
            for memory, offset, size in known[1]:
                memory.writing(offset, size)

        self._handles.append(optimizer.register_step_pre_hook(before))

    def of_model(self, model: torch.nn.Module) -> None:
        """Announce the buffers of each module before its forward pass, while it is in training mode."""
        for module in model.modules():
            found = ranges(self._memories, module.buffers(recurse=False))
            if found:
                self._handles.append(module.register_forward_pre_hook(_before_forward(found)))

    def remove(self) -> None:
        """Remove the hooks; safe to call twice."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


def announce_writes(
    memories: Sequence[Memory],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    model: torch.nn.Module | None = None,
) -> AnnouncedWrites:
    """Announce what an optimizer and a model write in these regions, from now on.

    In a CUDA graph no hook runs: announce the writes of a replay by `Memory.writing`.

    Args:
        memories: mapped regions, in which parameters, state and buffers lie; what lies elsewhere is no concern.
        optimizer: its steps write parameters and state.
        model: its forward passes write buffers.
    """
    writes = AnnouncedWrites(memories)
    if optimizer is not None:
        writes.of_optimizer(optimizer)
    if model is not None:
        writes.of_model(model)
    return writes


def ranges(memories: Iterable[Memory], tensors: Iterable[torch.Tensor]) -> list[tuple[Memory, int, int]]:
    """Return where tensors lie in regions, as offset and size in bytes; neighbours are joined."""
    places = sorted({(tensor.data_ptr(), _extent(tensor)) for tensor in tensors if tensor.numel()})
    found: list[tuple[Memory, int, int]] = []
    for memory in memories:
        begin = end = -_JOIN
        for address, size in places:
            offset = address - memory.va
            if offset < 0 or offset + size > memory.size:
                continue
            if offset - end < _JOIN:
                end = max(end, offset + size)
                continue
            if end > begin:
                found.append((memory, begin, end - begin))
            begin, end = offset, offset + size
        if end > begin:
            found.append((memory, begin, end - begin))
    return found


def _written_by(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
    for values in optimizer.state.values():
        yield from (value for value in values.values() if isinstance(value, torch.Tensor))


def _extent(tensor: torch.Tensor) -> int:
    elements = extent(tuple(tensor.shape), tuple(tensor.stride()))
    return elements * int(tensor.element_size())


def _before_forward(found: list[tuple[Memory, int, int]]) -> Callable[..., None]:
    def before(module: torch.nn.Module, _: object) -> None:
        if module.training:
            for memory, offset, size in found:
                memory.writing(offset, size)

    return before
