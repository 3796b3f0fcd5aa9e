"""Random choice of a token from a counter, so that it depends only on seed and place."""

from typing import Final

import torch

TEMPERATURE: Final = 0.3
"""Temperature of the softmax. Low, so that the model's output outweighs chance."""

_ODD: Final = (0x2545F4914F6CDD1D, 0x1D8E4E27C47D124F, 0x2127599BF4325C37)
"""Multipliers of a 64-bit mixing function; PyTorch's int64 wraps around."""


def noise(seeds: torch.Tensor, places: torch.Tensor, width: int) -> torch.Tensor:
    """Return Gumbel noise of shape (batch, ``width``), float32, from int64 tensors of shape (batch,)."""
    mixed = _mixed(_mixed(seeds * _ODD[0]) + places * _ODD[1])
    counters = torch.arange(width, device=seeds.device, dtype=torch.int64) * _ODD[2]
    bits = _mixed(mixed[:, None] ^ counters[None, :]) & 0xFFFFFF
    uniform = (bits.to(torch.float32) + 0.5) / 0x1000000
    return -torch.log(-torch.log(uniform))


def choose(logits: torch.Tensor, seeds: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Choose a token for each row of logits (batch, vocabulary); int64 of shape (batch,)."""
    scores = logits.to(torch.float32) / TEMPERATURE + noise(seeds, places, logits.shape[-1])
    return scores.argmax(-1)


def _mixed(value: torch.Tensor) -> torch.Tensor:
    for multiplier in _ODD:
        # The mask turns the arithmetic shift into a logical one.
        value = (value ^ ((value >> 29) & 0x7FFFFFFFF)) * multiplier
    return value ^ ((value >> 32) & 0xFFFFFFFF)
