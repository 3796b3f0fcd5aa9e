"""The entries of a UVM tools queue, in both layouts; `mpsguard.linux.nvidia.uvm_tools` has the queue itself.

Facts are from ``uvm_types.h`` of the open kernel modules (github.com/NVIDIA/open-gpu-kernel-modules,
kernel-open/nvidia-uvm), compared over the releases 535.54 to 595.45: UvmEventEntry is 64 bytes in all of them,
UvmEventEntry_V2 is 72 bytes since 565.57. A time stamp is NV_GETTIME (``uvm_linux.h``): nanoseconds of
CLOCK_MONOTONIC_RAW. A processor is 0 for the CPU, and otherwise one more than the driver's index of the GPU, or in the
second layout of the GPU instance, of which each GPU has eight (``uvm_processors.h``).
"""

import struct
from enum import IntFlag
from typing import Final, NamedTuple

import msgspec

_ADDRESS_AND_TIME: Final = struct.Struct("=QQ")
_ADDRESS_AT: Final = 8

_ACCESS: Final = {1: "read", 2: "write", 3: "atomic", 4: "prefetch"}
"""UvmEventMemoryAccessType."""

_FAULT_TYPE: Final = {
    1: "invalid PDE",
    2: "invalid PTE",
    3: "write to read-only",
    4: "atomic not allowed",
    5: "invalid PDE size",
    6: "limit violation",
    7: "unbound instance block",
    8: "privilege violation",
    9: "pitch mask violation",
    10: "work creation",
    11: "unsupported aperture",
    12: "compression failure",
    13: "unsupported kind",
    14: "region violation",
    15: "poison",
    16: "confidential-computing violation",
}
"""UvmEventFaultType; the last one came with 560."""

_REASON: Final = {
    1: "invalid address",
    2: "invalid permissions",
    3: "invalid fault type",
    4: "out of memory",
    5: "internal error",
    6: "invalid operation",
}
"""UvmEventFatalReason."""


class Events(IntFlag):
    """Kinds of events, as bits of eventTypeFlags; the entry's first byte is the number of the bit (UvmEventType)."""

    GPU_FAULT = 1 << 3
    """Every fault the driver looks at; those of managed memory are daily business and come in thousands."""
    FATAL_FAULT = 1 << 6
    """A fault that the driver cannot resolve: it is told before the driver stops the GPU's work."""


class Fault(msgspec.Struct, frozen=True):
    """One event."""

    fatal: bool
    fault_type: str
    access: str
    reason: str | None
    """Why it is fatal; None for events that do not say."""
    address: int
    processor: int
    raw_ns: int
    """Nanoseconds of CLOCK_MONOTONIC_RAW."""


class _Place(NamedTuple):
    """Where an entry says what; its type, the fault's type, address and time are at 0, 1, 8 and 16 everywhere."""

    access: int
    processor: slice
    reason: int | None


class EventLayout(NamedTuple):
    """One form of a queue's entries, and the request that asks for it."""

    request: int
    entry_bytes: int
    gpu_fault: _Place
    fatal_fault: _Place
    instances: int
    """Processor numbers that each GPU has."""


V1: Final = EventLayout(56, 64, _Place(2, slice(3, 4), None), _Place(2, slice(3, 4), 4), 1)
"""UvmEventGpuFaultInfo and UvmEventFatalFaultInfo."""
V2: Final = EventLayout(76, 72, _Place(37, slice(2, 4), None), _Place(2, slice(4, 6), 3), 8)
"""UvmEventGpuFaultInfo_V2 and UvmEventFatalFaultInfo_V2."""


def decode(entry: bytes, layout: EventLayout) -> Fault | None:
    """The event in ``entry``, or None if it is of a kind that is not in `Events`."""
    kind = 1 << entry[0]
    if kind not in (Events.GPU_FAULT, Events.FATAL_FAULT):
        return None
    fatal = kind == Events.FATAL_FAULT
    place = layout.fatal_fault if fatal else layout.gpu_fault
    address, raw_ns = _ADDRESS_AND_TIME.unpack_from(entry, _ADDRESS_AT)
    return Fault(
        fatal=fatal,
        fault_type=_named(_FAULT_TYPE, entry[1]),
        access=_named(_ACCESS, entry[place.access]),
        reason=None if place.reason is None else _named(_REASON, entry[place.reason]),
        address=address,
        processor=int.from_bytes(entry[place.processor], "little"),
        raw_ns=raw_ns,
    )


def _named(names: dict[int, str], number: int) -> str:
    return names.get(number, f"unknown({number})")
