"""On a real GPU: what one client does no longer ends the others. One file a measurement."""

from typing import Final

from tests.bench.isolation import (
    crashes,
    enforced,
    ipc,
    memory,
    nccl,
    overrun,
    preload_cost,
    programs,
    terminate,
    zone_api,
)

MEASUREMENTS: Final = (
    crashes.MEASUREMENT,
    memory.MEASUREMENT,
    terminate.MEASUREMENT,
    overrun.MEASUREMENT,
    enforced.MEASUREMENT,
    zone_api.MEASUREMENT,
    programs.MEASUREMENT,
    nccl.MEASUREMENT,
    ipc.MEASUREMENT,
    *preload_cost.MEASUREMENTS,
)
