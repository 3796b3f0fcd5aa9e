"""`mpsguard` over a stand-in for nvidia-uvm whose address spaces are descriptors of /dev/full: SIMULATED.

As `tests.integration.systemd.with_driver`, for guards on a machine where nobody may make a device node.
"""

import sys
from functools import partial
from unittest.mock import patch

from mpsguard.cli.guard import main
from mpsguard.daemon import senses
from mpsguard.sensors.uvm import UvmSensor
from tests.unit.sensors.uvm_bench import DEVICE
from tests.unit.sensors.uvm_driver import StandInDriver

if __name__ == "__main__":
    with patch.object(senses, "UvmSensor", partial(UvmSensor, driver=StandInDriver(), device=DEVICE)):
        sys.exit(main())
