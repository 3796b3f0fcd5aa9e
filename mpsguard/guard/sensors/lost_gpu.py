"""Lines of the kernel log, other than Xids, on GPUs that are gone: of the NVIDIA driver, and of Linux' PCI core.

The driver's are of ``osHandleGpuLost`` and of the probe of a device (osinit.c and osapi.c of the open driver
595.45.04), the PCI core's of drivers/pci/pcie (Linux 4.4 to 6.18). The PCI core says of a device without handlers for
errors, as the driver's are, that it cannot recover, whatever happened; only an error that was fatal tells of a GPU.
"""

import re
from typing import Final

from mpsguard.guard.evidence import DeviceHealth

_TOGETHER: Final = 2.0
"""Seconds within which the lines of one error are printed: one second for the reset of a link."""

_ADDRESS: Final = r"(?:PCI:)?(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<slot>[0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-9a-f])?"
_FALLEN: Final = re.compile(
    rf"NVRM: GPU (?:at )?{_ADDRESS}:? (?:(?:GPU )?has fallen off the bus\.?|GPU is lost[^:]*)", re.IGNORECASE
)
_INSTALLED: Final = re.compile(rf"NVRM: The NVIDIA GPU {_ADDRESS}(?P<rest>\W.{{0,200}})?", re.IGNORECASE)
_NOT_RESPONDING: Final = re.compile(
    r"NVRM: (?:installed in this system has )?fallen off the bus and(?: is not responding to commands\.?)?"
)
_FATAL: Final = re.compile(
    rf"(?P<driver>nvidia|pcieport) {_ADDRESS}: (?:AER: )?.{{0,60}}Uncorrect(?:ed|able) \(Fatal\).{{0,120}}",
    re.IGNORECASE,
)
_NOT_RECOVERED: Final = re.compile(
    rf"nvidia {_ADDRESS}: (?:AER: can't recover \(no error_detected callback\)|device has no AER-aware driver)",
    re.IGNORECASE,
)
_INACCESSIBLE: Final = re.compile(
    rf"nvidia {_ADDRESS}: (?:Unable to change power state from \S{{1,8}} to D0, device inaccessible)", re.IGNORECASE
)

GONE: Final = DeviceHealth("fallen_off_bus", 1, True)
LINK_FAILED: Final = DeviceHealth("pcie_fatal_error", 1, True)
INACCESSIBLE: Final = DeviceHealth("pcie_inaccessible", 1, True)


class LostGpuLines:
    """Lines in, GPUs that are gone out. Keeps what a line means only together with an earlier one."""

    def __init__(self) -> None:
        self._named: tuple[str, float] | None = None
        """The GPU of a message that is not complete yet, and when it began."""
        self._port_failed = float("-inf")

    def read(self, text: str, stamp: float) -> tuple[str, DeviceHealth] | None:
        """Return the GPU that a record tells of, and what it says; None for most.

        Args:
            text: of a record that the kernel wrote; it is printable.
            stamp: seconds of the log's own clock.
        """
        if (found := _FALLEN.fullmatch(text)) is not None:
            return _gpu(found), GONE
        if (found := _INSTALLED.fullmatch(text)) is not None:
            if "fallen off the bus" in (found["rest"] or ""):
                return _gpu(found), GONE
            self._named = _gpu(found), stamp
        elif _NOT_RESPONDING.fullmatch(text) is not None and self._named is not None:
            (gpu, began), self._named = self._named, None
            return (gpu, GONE) if stamp - began <= _TOGETHER else None
        elif (found := _FATAL.fullmatch(text)) is not None:
            if found["driver"] == "nvidia":
                return _gpu(found), LINK_FAILED
            self._port_failed = stamp
        elif (found := _NOT_RECOVERED.fullmatch(text)) is not None and stamp - self._port_failed <= _TOGETHER:
            return _gpu(found), LINK_FAILED
        elif (found := _INACCESSIBLE.fullmatch(text)) is not None:
            return _gpu(found), INACCESSIBLE
        return None


def _gpu(found: re.Match[str]) -> str:
    return f"{int(found['domain'] or '0', 16):04x}:{found['slot'].lower()}"
