"""On a real GPU: unmodified programs go on by their second driver after a neighbour's fault. One file a measurement."""

from typing import Final

from tests.bench.second_driver import alone, busy, compiled, cost, engine, idle, moves, unchanged

MEASUREMENTS: Final = (
    idle.MEASUREMENT,
    busy.MEASUREMENT,
    compiled.MEASUREMENT,
    engine.MEASUREMENT,
    alone.MEASUREMENT,
    moves.MEASUREMENT,
    cost.MEASUREMENT,
    unchanged.MEASUREMENT,
)
