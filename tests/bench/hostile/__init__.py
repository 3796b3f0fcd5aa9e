"""What a client may do on purpose so that the others of its lane end with it. One file an attack."""

from typing import Final

from tests.bench.hostile import blamed, exec_away, private_lane

MEASUREMENTS: Final = (exec_away.MEASUREMENT, blamed.OUTSIDE, blamed.GHOST, private_lane.MEASUREMENT)
