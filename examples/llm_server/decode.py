"""Prefills a prompt into the cache, and computes one more token for all sequences, with constant shapes and results.

A step takes a token and a place for every slot; unused slots are computed too, at a place that is never read. So a
token does not depend on the other slots, nor on the process that computes it.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from examples.llm_server import sampling
from examples.llm_server.cache import SlotCache
from examples.llm_server.shapes import Shape

_SLOW_WARMING = 3
"""Passes before a graph is recorded, in which libraries choose and load their kernels."""

_SAME_EVERY_TIME: Final = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Attention kernels with the same sums in every run, unlike PyTorch 2.11's default on an H200."""


class Next(NamedTuple):
    """The input of a slot: the last token of its sequence, that token's place, and the request's seed."""

    token: int
    place: int
    seed: int


class Decoder:
    """Runs a model with a cache. For one thread."""

    def __init__(self, model: Any, cache: SlotCache, shape: Shape, slots: int, device: torch.device) -> None:
        self._model = model
        self._cache = cache
        self._cache_argument = _name_of_cache_argument(model)
        self._shape = shape
        self._slots = slots
        self._device = device
        self._all_places = torch.arange(shape.places, device=device)
        self._idle = Next(0, shape.length, 0)
        # The graph reads this tensor. Initially every slot is idle: writes to other places would damage sequences.
        self._input = torch.tensor([self._idle] * slots, dtype=torch.int64, device=device)
        self._output = torch.zeros(slots, dtype=torch.int64, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None

    def warm(self, *, record: bool) -> None:
        """Run everything once, and ``record`` the step as a CUDA graph if there is a GPU.

        Writes only to places of the cache that are never read, so that another process may be working in the same
        memory.
        """
        for _ in range(_SLOW_WARMING):
            self._prefill_chunk(0, [0], self._shape.length, 0, scratch=True)
            self._step_eagerly()
        if self._device.type == "cuda" and record:
            torch.cuda.synchronize(self._device)
            graph = torch.cuda.CUDAGraph()
            with torch.no_grad(), torch.cuda.graph(graph):
                self._output.copy_(self._pass())
            self._graph = graph
            # Once more: recording a graph empties PyTorch's memory caches, on the GPU and the host. Refilling them
            # calls the driver, which can take 0.15 s while the driver cleans up after a fault.
            self._prefill_chunk(0, [0], self._shape.length, 0, scratch=True)
            self.step({})
        self.touch()

    def touch(self) -> float:
        """Run the smallest operation on weights and cache, and wait for its end."""
        weight = next(iter(self._model.parameters()))
        return float((weight.view(-1)[:1].float() + self._cache.keys[-1].view(-1)[:1].float()).item())

    def prefill(self, slot: int, tokens: Sequence[int], seed: int) -> int:
        """Compute a sequence from its start into a slot, and return the token that follows."""
        chosen = 0
        for start in range(0, len(tokens), self._shape.chunk):
            chosen = self._prefill_chunk(slot, tokens[start : start + self._shape.chunk], start, seed)
        return chosen

    def step(self, given: Mapping[int, Next]) -> dict[int, int]:
        """Compute one more token for each given slot."""
        rows = [given.get(slot, self._idle) for slot in range(self._slots)]
        self._input.copy_(torch.tensor(rows, dtype=torch.int64))
        if self._graph is None:
            self._step_eagerly()
        else:
            self._graph.replay()
        chosen = self._output.tolist()
        return {slot: chosen[slot] for slot in given}

    def _step_eagerly(self) -> None:
        with torch.no_grad():
            self._output.copy_(self._pass())

    def _pass(self) -> torch.Tensor:
        tokens, places, seeds = self._input.unbind(1)
        logits = self._forward(tokens[:, None], places[:, None], slice(0, self._slots))
        return sampling.choose(logits[:, -1], seeds, places + 1)

    def _prefill_chunk(self, slot: int, tokens: Sequence[int], start: int, seed: int, *, scratch: bool = False) -> int:
        padding = self._shape.chunk - len(tokens)
        ids = torch.tensor([[*tokens, *([0] * padding)]], device=self._device)
        real = [self._idle.place] * len(tokens) if scratch else list(range(start, start + len(tokens)))
        places = torch.tensor([[*real, *([self._idle.place] * padding)]], device=self._device)
        with torch.no_grad():
            logits = self._forward(ids, places, slice(slot, slot + 1))[:, len(tokens) - 1]
        behind = torch.tensor([start + len(tokens)], device=self._device)
        return int(sampling.choose(logits, torch.tensor([seed], device=self._device), behind).item())

    def _forward(self, ids: torch.Tensor, places: torch.Tensor, slots: slice) -> torch.Tensor:
        self._cache.aim(slots, places)
        # A token attends to all places up to its own: at the spare place to everything, but that result is unused.
        mask = self._all_places[None, None, None, :] <= places[:, None, :, None]
        with sdpa_kernel(_SAME_EVERY_TIME):
            result = self._model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=places,
                use_cache=True,
                **{self._cache_argument: self._cache},
            )
        return torch.as_tensor(result.logits)


def _name_of_cache_argument(model: Any) -> str:
    """Return the argument of ``model`` that takes the cache: transformers 5.24 renamed it."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
