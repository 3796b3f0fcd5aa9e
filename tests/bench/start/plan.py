"""How each model of the suite is measured."""

from typing import Final, NamedTuple


class Plan(NamedTuple):
    """How a model is measured."""

    kind: str
    small: str
    """What stands for it without a GPU."""
    size: int
    """Bytes of its weights, about."""
    pinned: float | None
    """Bar for the first answer from pinned memory, ms; None: none, or that of `of_bus`."""
    gpu: float | None
    """The same with memory that is on the GPU already; None: no bar."""
    needs: str
    """What of its image the first answer needs."""
    early: float | None
    """Bar for the first answer on demand, of the time that the whole image takes to arrive; None: no bar."""
    cold: float
    """Seconds that may be spent on cold processes."""
    cold_at_once: int = 5
    """Most of a cold start are imports, of which each process does its own: so many do not wait for one another."""
    of_bus: float | None = None
    """Bar for the first answer from pinned memory, of the time that the bus takes for the weights."""
    instances: int = 8
    """Starts at once, and instances that GPU memory is compared for."""


_DENSE: Final = "a dense model's answer needs all its bytes"
MOBILENET: Final = Plan("mobilenet", "small-mobilenet", 14 << 20, 30.0, 15.0, _DENSE, None, 210.0)
GPT2_LARGE: Final = Plan("gpt2-large", "small-gpt2", 3200 << 20, 80.0, 40.0, _DENSE, 0.6, 150.0)
SEVEN: Final = Plan("7b", "small-llama", 13500 << 20, None, None, _DENSE, 0.6, 200.0, cold_at_once=3, of_bus=1.15)
MIXTURE: Final = Plan(
    "mixture", "small-mixture", 4700 << 20, None, None, "four words, two of 32 experts for each", 0.6, 60.0
)
"""A mixture of experts: the first answer needs a part of the image."""
