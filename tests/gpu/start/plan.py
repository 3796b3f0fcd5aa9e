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
    """Bar for the first answer from pinned memory, ms; None: by the bus."""
    gpu: float | None
    """The same with memory that is on the GPU already; None: no bar."""
    cold: float
    """Seconds that may be spent on cold processes."""
    cold_at_once: int = 5
    """Most of a cold start are imports, of which each process does its own: so many do not wait for one another."""
    instances: int = 8
    """Starts at once, and instances that GPU memory is compared for."""


MOBILENET: Final = Plan("mobilenet", "small-mobilenet", 14 << 20, 30.0, 15.0, 210.0)
GPT2_LARGE: Final = Plan("gpt2-large", "small-gpt2", 3200 << 20, 80.0, 40.0, 150.0)
SEVEN: Final = Plan("7b", "small-llama", 13500 << 20, None, None, 60.0, cold_at_once=3)
