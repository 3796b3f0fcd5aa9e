"""Tiny language models in the test's own process. Imports PyTorch and transformers, which takes seconds."""

import torch

from examples.llm_server import memory
from examples.llm_server.decode import Decoder, Next
from examples.llm_server.headless import request
from examples.llm_server.memory import Loaded
from examples.llm_server.shapes import SHAPES, Shape

__all__ = ["SHAPES", "Next", "cold", "decoder", "request"]

CPU = torch.device("cpu")


def cold(shape: Shape, slots: int, seed: int) -> Loaded:
    """Return new weights of that seed, and an empty cache."""
    return memory.cold(shape, slots, seed, CPU)


def decoder(loaded: Loaded, shape: Shape, slots: int) -> Decoder:
    """Return a decoder on the processor."""
    return Decoder(loaded.network, loaded.slots, shape, slots, CPU)
