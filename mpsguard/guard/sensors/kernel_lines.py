"""Lines of the kernel log, taken apart: Xids of the NVIDIA driver, and what it and Linux say of GPUs that are gone.

Xid lines are those of ``krcReportXid`` (kernel_rc.c of the open driver, tags 535 to 595): ``NVRM: Xid (PCI:0000:18:00
GPU-I:01 GPU-CI:00): 31, pid=1, name=x, ...``, instances on MIG only, process only where a channel is to blame. The
proprietary driver prints the same; older ones leave out ``PCI:`` or the name, and write a pid they do not know as
``'<unknown>'``. The words after that come from the GPU's firmware.

Lines on GPUs that are gone are of ``osHandleGpuLost`` and of the probe of a device (osinit.c and osapi.c of the open
driver 595.45.04), and of the PCI core's drivers/pci/pcie (Linux 4.4 to 6.18). The PCI core says of a device without
handlers for errors, as the driver's are, that it cannot recover, whatever happened; only an error that was fatal tells
of a GPU.
"""

import re
from typing import Final

import msgspec

from mpsguard.guard.evidence import DeviceHealth, Xid
from mpsguard.linux.identity import PID_LIMIT
from mpsguard.linux.processes.procfs import printable

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
_TEXT_LIMIT: Final = 400

_XID: Final = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<domain>[0-9a-f]{4,8}):(?P<slot>[0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-9a-f])?"
    r"(?: (?P<instance>[^)]*))?\): (?P<number>\d{1,5})(?:, *(?P<rest>.*))?$",
    re.ASCII | re.IGNORECASE,
)
_PROCESS: Final = re.compile(r"pid='?(?P<pid>[^',]*)'?(?:, *name=[^,]*)?(?:, *|$)", re.ASCII)
_CHANNEL: Final = re.compile(r"\b(?:Ch|ChID|channel(?: ID)?) (?:0x)?([0-9a-f]{1,8})\b", re.ASCII | re.IGNORECASE)
_SM: Final = re.compile(r"\bGPC (\d{1,3}), TPC (\d{1,3})(?:, SM (\d{1,3}))?", re.ASCII)
_GPC: Final = re.compile(r"\bENGINE \S+ GPC(\d{1,3})\b", re.ASCII)


class XidLine(msgspec.Struct, frozen=True):
    """An Xid line: which GPU, and what happened."""

    gpu: str
    """PCI address without function: ``0000:18:00``."""
    instance: str
    """MIG instances as the driver has them (``GPU-I:01 GPU-CI:00``), or nothing."""
    xid: Xid


def parse_xid_line(text: str) -> XidLine | None:
    """The text of a record as an Xid line, or None. It must begin with the driver's words: others may quote them."""
    found = _XID.match(text)
    if found is None:
        return None
    rest = found["rest"] or ""
    process = _PROCESS.match(rest)
    message = rest[process.end() :] if process else rest
    # A process name with a comma in it spills into the message, but only into its beginning: the last one counts.
    channels, places = _CHANNEL.findall(message), _SM.findall(message)
    place = places[-1] if places else (*_GPC.findall(message)[-1:], "", "", "")[:3]
    gpc, tpc, sm = (int(number) if number else None for number in place)
    return XidLine(
        gpu=f"{int(found['domain'], 16):04x}:{found['slot'].lower()}",
        instance=found["instance"] or "",
        xid=Xid(
            number=int(found["number"]),
            pid=_pid(process["pid"]) if process else None,
            text=printable(message)[:_TEXT_LIMIT],
            channel=int(channels[-1], 16) if channels else None,
            gpc=gpc,
            tpc=tpc,
            sm=sm,
        ),
    )


def _pid(word: str) -> int | None:
    number = int(word) if word.isascii() and word.isdecimal() and len(word) < 10 else 0
    return number if 0 < number < PID_LIMIT else None


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
