"""`mpsguard` over a stand-in for nvidia-uvm that has descriptors of /dev/full as address spaces: SIMULATED.

As `tests.integration.systemd.with_driver`, for guards on a machine where no device node can be made.
"""

import sys
import threading
import time
from unittest.mock import patch

from mpsguard.cli.guard import main
from mpsguard.guard.sensors.sensor import SensorSetup
from mpsguard.guard.sensors.uvm import UvmSensor
from tests.unit.guard.sensors.uvm_bench import DEVICE
from tests.unit.guard.sensors.uvm_driver import StandInDriver

_REAPED_EVERY = 0.2


class _Driver(StandInDriver):
    """Lets go of closed trackers by itself, as the kernel does: a test counts what the guard has open."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        threading.Thread(target=self._reap_on_and_on, daemon=True).start()

    def open(self) -> int:
        with self._lock:
            return super().open()

    def _reap_on_and_on(self) -> None:
        while True:
            time.sleep(_REAPED_EVERY)
            with self._lock:
                self.reap()


if __name__ == "__main__":
    # Before there is an event loop, which the stand-in would use for itself.
    driver = _Driver()

    def open_sensor(setup: SensorSetup) -> UvmSensor:
        return UvmSensor(setup.emit, driver=driver, device=DEVICE, told=setup.on_attachment)

    with patch.object(UvmSensor, "open", open_sensor):
        sys.exit(main())
