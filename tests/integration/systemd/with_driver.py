"""`mpsguard` over a stand-in for nvidia-uvm's tools device: SIMULATED, and nothing else is.

For a guard that systemd starts, where no test can give its sensor a driver. What clients have open is /dev/full
by the device's name; see `tests.unit.guard.sensors.uvm_driver`.
"""

import sys
from unittest.mock import patch

from mpsguard.cli.guard import main
from mpsguard.guard.sensors import uvm
from tests.unit.guard.sensors.uvm_driver import StandInDriver

if __name__ == "__main__":
    with patch.object(uvm, "ToolsDriver", StandInDriver):
        sys.exit(main())
