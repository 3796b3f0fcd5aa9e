"""On a real GPU: service classes, what they give and what they cost. One file a measurement."""

from typing import Final

from tests.bench.classes import beside_training, connect, memory_limit, resize, rightsizing, saturation, spin

MEASUREMENTS: Final = (
    connect.MEASUREMENT,
    connect.TOGETHER,
    spin.MEASUREMENT,
    beside_training.MEASUREMENT,
    saturation.MEASUREMENT,
    rightsizing.MEASUREMENT,
    resize.MEASUREMENT,
    memory_limit.MEASUREMENT,
)
