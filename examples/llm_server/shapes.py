"""The models: shapes of well-known ones, and small ones for machines without a GPU.

Weights are random and seeded, so nothing is downloaded. The output has no meaning, but depends on the whole input, as
that of a trained model does.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from transformers import GPT2Config, LlamaConfig

SPARE: Final = 8
"""Places behind those that a sequence may use. Padding and warming write there, and they are never read."""

_TINY_SPREAD: Final = 0.3
"""Standard deviation of a tiny model's weights: with the usual 0.02, so narrow a model would hardly use its context."""


class Shape(NamedTuple):
    """One model."""

    name: str
    config: Callable[[], Any]
    dtype: str
    """PyTorch's name of the type of weights and cache."""
    length: int
    """Maximum tokens of a sequence, prompt included; with `SPARE`, a multiple of 8."""
    chunk: int
    """Tokens of a prompt that are computed at once."""

    @property
    def places(self) -> int:
        """Places of the cache for each sequence."""
        return self.length + SPARE


def _gpt2() -> Any:
    return GPT2Config(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)


def _llama_7b() -> Any:
    return LlamaConfig(max_position_embeddings=4096)


def _tiny_gpt2() -> Any:
    return GPT2Config(
        n_layer=2,
        n_embd=32,
        n_head=2,
        n_positions=128,
        vocab_size=512,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=_TINY_SPREAD,
    )


def _tiny_llama() -> Any:
    return LlamaConfig(
        num_hidden_layers=2,
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
        max_position_embeddings=256,
        initializer_range=_TINY_SPREAD,
    )


SHAPES: Final[Mapping[str, Shape]] = {
    shape.name: shape
    for shape in (
        Shape("gpt2", _gpt2, "bfloat16", 1016, 64),
        Shape("llama-7b", _llama_7b, "bfloat16", 2040, 64),
        Shape("tiny-gpt2", _tiny_gpt2, "float32", 120, 8),
        Shape("tiny-llama", _tiny_llama, "float32", 120, 8),
    )
}
"""By name; the tiny ones are for tests."""
