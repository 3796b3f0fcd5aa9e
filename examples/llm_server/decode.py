"""The steps: a prompt into the cache, and one token more for all sequences. Shapes never change, nor do results.

A step takes a token and a place for every slot; slots that are not worked on are computed, too, at a place that nobody
reads. So a token is the same whatever the other slots do, and whichever process computes it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from examples.llm_server import sampling
from examples.llm_server.cache import SlotCache
from examples.llm_server.shapes import Shape

_SLOW_WARMING = 3
"""Passes before a graph is recorded: libraries choose and load their kernels in them."""

_SAME_EVERY_TIME: Final = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Attention whose sums are the same in every run. What PyTorch 2.11 chooses on an H200 for itself is not."""


class Next(NamedTuple):
    """What a slot is given: the last token of its sequence, that token's place, and the request's seed."""

    token: int
    place: int
    seed: int


class Decoder:
    """A model and a cache, at work. For one thread."""

    def __init__(self, model: Any, cache: SlotCache, shape: Shape, slots: int, device: torch.device) -> None:
        self._model = model
        self._cache = cache
        self._shape = shape
        self._slots = slots
        self._device = device
        self._all_places = torch.arange(shape.places, device=device)
        self._nobody = Next(0, shape.length, 0)
        # The graph reads it where it lies. Nobody's place from the start: what is written elsewhere is somebody's.
        self._input = torch.tensor([self._nobody] * slots, dtype=torch.int64, device=device)
        self._output = torch.zeros(slots, dtype=torch.int64, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None

    def warm(self, *, record: bool) -> None:
        """Run everything once, and ``record`` the step as a CUDA graph if there is a GPU.

        Writes to the cache where nobody reads, so that another process may be at work on the same memory.
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
            # Once more: recording a graph empties PyTorch's stocks of memory, the GPU's and the host's. To fill them is
            # a call of the driver, which can take 0.15 s while that tears down what a fault has hit.
            self._prefill_chunk(0, [0], self._shape.length, 0, scratch=True)
            self.step({})
        self.touch()

    def touch(self) -> float:
        """The smallest operation on weights and cache, to its end."""
        weight = next(iter(self._model.parameters()))
        return float((weight.view(-1)[:1].float() + self._cache.keys[-1].view(-1)[:1].float()).item())

    def prefill(self, slot: int, tokens: Sequence[int], seed: int) -> int:
        """Compute a sequence from its start into a slot; the token that follows."""
        chosen = 0
        for start in range(0, len(tokens), self._shape.chunk):
            chosen = self._prefill_chunk(slot, tokens[start : start + self._shape.chunk], start, seed)
        return chosen

    def step(self, given: Mapping[int, Next]) -> dict[int, int]:
        """One token more for each slot that is given."""
        rows = [given.get(slot, self._nobody) for slot in range(self._slots)]
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
        real = [self._nobody.place] * len(tokens) if scratch else list(range(start, start + len(tokens)))
        places = torch.tensor([[*real, *([self._nobody.place] * padding)]], device=self._device)
        with torch.no_grad():
            logits = self._forward(ids, places, slice(slot, slot + 1))[:, len(tokens) - 1]
        behind = torch.tensor([start + len(tokens)], device=self._device)
        return int(sampling.choose(logits, torch.tensor([seed], device=self._device), behind).item())

    def _forward(self, ids: torch.Tensor, places: torch.Tensor, slots: slice) -> torch.Tensor:
        self._cache.aim(slots, places)
        # Before the spare place, a token sees all that is not behind it; at it, it sees everything, and is not read.
        mask = self._all_places[None, None, None, :] <= places[:, None, :, None]
        with sdpa_kernel(_SAME_EVERY_TIME):
            result = self._model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=places,
                past_key_values=self._cache,
                use_cache=True,
            )
        return torch.as_tensor(result.logits)
