"""On a real GPU: the guard in the place of the MPS control daemon. One file a measurement."""

from typing import Final

from tests.bench.broker import clients, commands, fault_parking, guard_killed, start_latency, throughput

MEASUREMENTS: Final = (
    clients.MEASUREMENT,
    commands.MEASUREMENT,
    start_latency.MEASUREMENT,
    throughput.MEASUREMENT,
    guard_killed.MEASUREMENT,
    fault_parking.MEASUREMENT,
)
