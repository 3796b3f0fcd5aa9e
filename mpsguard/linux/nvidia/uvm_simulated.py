"""SIMULATED tools device: it takes pseudoterminals for address spaces, and none of them ever has an event.

For `make demo`, where the simulated programs hold the controlling side of one, and the simulated server the other side:
it hangs up when the last copy is closed, as the address space of a process goes with the last copy of its file.
"""

import errno
import os
import struct
from pathlib import Path
from typing import Final

from mpsguard.linux.nvidia.uvm_events import V2
from mpsguard.linux.nvidia.uvm_tools import ENABLE_EVENTS, INIT_STATUS_AT, SET_THRESHOLD, ToolsDriver

DEVICE: Final = Path("/dev/ptmx")
"""What an address space is a file of, in the place of /dev/nvidia-uvm."""


class SimulatedToolsDriver(ToolsDriver):
    """Takes each pseudoterminal for an address space. Its trackers are never readable."""

    note = "SIMULATED: "

    def open(self) -> int:
        """A descriptor that is never readable."""
        return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def call(self, _fd: int, request: int, parameters: bytearray) -> None:
        """Grant what a tracker needs; OSError EINVAL for all else, as for a request that a driver does not know."""
        if request == V2.request:
            struct.pack_into("=I", parameters, INIT_STATUS_AT, 0)
        elif request not in (SET_THRESHOLD, ENABLE_EVENTS):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
