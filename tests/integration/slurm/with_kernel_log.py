"""`mpsguard` over a stand-in for the kernel log, the FIFO that KERNEL_LOG names: SIMULATED, and nothing else is.

No process can write lines of the driver into the real one.
"""

import os
import sys
from pathlib import Path
from unittest.mock import patch

from mpsguard.cli.guard import main
from mpsguard.guard.sensors.kernel_log import KernelLogSensor

if __name__ == "__main__":
    defaults = KernelLogSensor.__init__.__kwdefaults__
    assert defaults is not None
    with patch.dict(defaults, path=Path(os.environ["KERNEL_LOG"])):
        sys.exit(main())
