"""On a real GPU: work goes on at a standby when its lane will not live. One file a measurement."""

from typing import Final

from tests.bench.failover import attach, cold, first_word, latency, steady, training, two_gpus

MEASUREMENTS: Final = (
    *latency.MEASUREMENTS,
    *cold.MEASUREMENTS,
    first_word.MEASUREMENT,
    training.MEASUREMENT,
    attach.MEASUREMENT,
    steady.MEASUREMENT,
    two_gpus.MEASUREMENT,
)
