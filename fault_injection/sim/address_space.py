"""The simulated GPU address space: one that goes with the last copy of a file, whichever process has it.

A client has the controlling side of a pseudoterminal, in the place of a file of /dev/nvidia-uvm; its server has the
other side, which hangs up with the last copy of the first. A guard that holds a copy keeps it (lifelines.md).
"""

import ctypes
import os
import select
from contextlib import suppress
from typing import Final

from fault_injection.sim.wire import Channel

OFFER: Final = b"SIMSPACE\0"
"""The message with the server's side: the simulation's own, as that of kernels is."""
_PR_SET_PTRACER: Final = 0x59616D61
_ANY: Final = -1


class OwnSpace:
    """The client's side."""

    def __init__(self) -> None:
        self._file, self._far = -1, -1
        with suppress(OSError):  # no pseudoterminals here: then there is nothing that could be kept
            self._file, self._far = os.openpty()
            # A guard without privileges may copy it, as one with them can; a kernel with Yama asks the process.
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(_ANY), 0, 0, 0)

    def offer(self, server: Channel) -> None:
        """Give the server its side."""
        if self._far >= 0:
            server.send(OFFER, fd=self._far)
            os.close(self._far)
            self._far = -1

    def close(self) -> None:
        """Let go; safe to call twice."""
        for file in (self._file, self._far):
            if file >= 0:
                os.close(file)
        self._file = self._far = -1


def is_gone(far: int) -> bool:
    """Return whether no process holds the client's side any more."""
    poller = select.poll()
    poller.register(far, 0)
    return bool(poller.poll(0))
