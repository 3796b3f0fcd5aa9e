"""Issue 4's claims on real input: what one client does no longer ends the others. One file a measurement."""

from typing import Final

from gpu_suite.isolation import (
    crashes,
    enforced,
    memory,
    overrun,
    preload_cost,
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
    preload_cost.MEASUREMENT,
)
