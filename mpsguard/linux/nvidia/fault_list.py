"""The list of contained faults of the patched nvidia-uvm: one line for each poisoned address space, for root alone.

A line is ``NUMBER`` and ``name=value`` words, the newest line first, address spaces that are gone behind those that
exist (``kmod_patch/source/uvm_fault_report.c``). The module contains faults only while a process has the list open.
"""

import os
import re
from pathlib import Path
from typing import Final

import msgspec

PATH: Final = Path("/proc/driver/nvidia-uvm/contained_faults")
_MOST_BYTES: Final = 1 << 20
"""Some 5,000 lines; the module keeps 256 of address spaces that are gone."""
_PIECE: Final = 1 << 16
_NUMBER: Final = re.compile(r"[0-9]{1,20}", re.ASCII)
_ADDRESS: Final = re.compile(r"0x[0-9a-f]{1,16}", re.ASCII)
_WORD: Final = re.compile(r"[A-Z0-9_]{1,40}", re.ASCII)
_FLAGS: Final = {"0": False, "1": True}
_MOST_PID: Final = 1 << 22
"""PID_MAX_LIMIT of the kernel."""


class ContainedFault(msgspec.Struct, frozen=True):
    """A line of the list: the first contained fault of an address space."""

    number: int
    """1 for the first since the module was loaded."""
    nanoseconds: int
    """Time of the fault, CLOCK_MONOTONIC."""
    pid: int
    """Of the process that made the address space; 0 if it had ended, or is not in this pid namespace."""
    start_ticks: int
    """When that process began, as `ProcessKey` has it."""
    alive: bool
    """Whether that process had not ended when the fault was reported. If so, the pid was its own."""
    gone: bool
    """Whether the address space has ended."""
    address: int
    access: str
    fault_type: str
    engine: str
    """sm or copy."""


def parse_line(line: str) -> ContainedFault | None:
    """Return the fault that a line tells of; None if it is not as it should be. Unknown words are passed over."""
    number, *words = line.split(" ")
    named = dict(word.split("=", 1) for word in words if "=" in word)
    try:
        numbers = [number, *(named[name] for name in ("time", "pid", "start"))]
        alive, gone = (_FLAGS[named[name]] for name in ("alive", "gone"))
        address = named["address"]
        texts = [named[name] for name in ("access", "type", "engine")]
    except KeyError:
        return None
    if not all(map(_NUMBER.fullmatch, numbers)) or not all(map(_WORD.fullmatch, texts)):
        return None
    if not _ADDRESS.fullmatch(address):
        return None
    counted, nanoseconds, pid, start = map(int, numbers)
    if pid > _MOST_PID or max(counted, nanoseconds, start) >= 1 << 63:
        return None
    access, fault_type, engine = (text.lower().replace("_", " ") for text in texts)
    return ContainedFault(
        number=counted,
        nanoseconds=nanoseconds,
        pid=pid,
        start_ticks=start,
        # A process without a number here cannot be told from another one.
        alive=alive and pid > 0,
        gone=gone,
        address=int(address, 16),
        access=access,
        fault_type=fault_type,
        engine=engine,
    )


def parse(text: bytes) -> tuple[list[ContainedFault], int]:
    """Return the faults in the bytes of a list, oldest first, and how many lines were not as they should be."""
    *lines, rest = text.decode("ascii", errors="replace").split("\n")
    parsed = [parse_line(line) for line in lines]
    found = [fault for fault in parsed if fault is not None]
    return sorted(found, key=_age), len(parsed) - len(found) + bool(rest)


def _age(fault: ContainedFault) -> tuple[int, int]:
    return fault.nanoseconds, fault.number


class FaultList:
    """Owns an open list. As long as it is open, the module contains faults."""

    def __init__(self, path: Path = PATH) -> None:
        """Open the list; OSError if there is none, or it may not be read."""
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def read(self) -> bytes:
        """Return the list as it is now, whole lines of it and 1 MiB at most; OSError if the module is gone."""
        parts: list[bytes] = []
        size = 0
        while size < _MOST_BYTES and (part := os.pread(self._fd, _PIECE, size)):
            parts.append(part)
            size += len(part)
        text = b"".join(parts)
        return text[: text.rfind(b"\n") + 1] if size >= _MOST_BYTES else text

    def close(self) -> None:
        """Close it; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
