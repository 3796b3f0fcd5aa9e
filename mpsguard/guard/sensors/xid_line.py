"""Xid lines of the NVIDIA driver, taken apart.

They are those of ``krcReportXid`` (kernel_rc.c of the open driver, tags 535 to 595): ``NVRM: Xid (PCI:0000:18:00
GPU-I:01 GPU-CI:00): 31, pid=1, name=x, ...``, instances on MIG only, process only where a channel is to blame. The
proprietary driver prints the same; older ones leave out ``PCI:`` or the name, and write a pid they do not know as
``'<unknown>'``. The words after that come from the GPU's firmware.
"""

import re
from typing import Final

import msgspec

from mpsguard.guard.evidence import Xid
from mpsguard.linux.identity import PID_LIMIT
from mpsguard.linux.processes.procfs import printable

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
