"""The KV cache in given memory: one sequence in each slot."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers.cache_utils import Cache

from examples.llm_server.shapes import Shape
from mpsguard.vault.client.torch_regions import Spec


def specs(shape: Shape, slots: int) -> dict[str, Spec]:
    """Return the tensors of a cache: keys and values of each layer, of shape (slot, head, place, dimension)."""
    config = shape.config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dimension = config.hidden_size // config.num_attention_heads
    one = Spec(shape.dtype, (slots, heads, shape.places, dimension))
    return {f"{layer}.{kind}": one for layer in range(config.num_hidden_layers) for kind in ("keys", "values")}


class SlotCache(Cache):
    """The cache of keys and values of a Hugging Face model. Does not own the memory.

    Entries before a sequence's place are not written again while the sequence is computed; the published forward state
    says where that place is.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__(layers=[])
        layers = len(tensors) // 2
        self.keys = [tensors[f"{layer}.keys"] for layer in range(layers)]
        self.values = [tensors[f"{layer}.values"] for layer in range(layers)]
        self._head = torch.arange(self.keys[0].shape[1], device=self.keys[0].device)[None, :, None]
        self._slots = slice(0, 0)
        self._where: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    def aim(self, slots: slice, places: torch.Tensor) -> None:
        """Set where the next pass writes: these slots, and for each of them ``places`` (slots, tokens), int64."""
        rows = torch.arange(slots.start, slots.stop, device=places.device)[:, None, None]
        self._slots, self._where = slots, (rows, self._head, places[:, None, :])

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new entries of shape (slots, head, tokens, dimension), and return all entries of these slots."""
        self.keys[layer_idx].index_put_(self._where, key_states)
        self.values[layer_idx].index_put_(self._where, value_states)
        return self.keys[layer_idx][self._slots], self.values[layer_idx][self._slots]
