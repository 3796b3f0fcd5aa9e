"""What a client may do on purpose so that the others of its lane end with it. One file an attack."""

from typing import Final

from gpu_suite.hostile import exec_away

MEASUREMENTS: Final = (exec_away.MEASUREMENT,)
