"""The kernel log: records with names of programs, and text of the GPU's firmware."""

import os
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from fault_injection.fuzzing import stored
from fault_injection.fuzzing.loop import CaseLoop
from fault_injection.fuzzing.mutation import changed_text, index
from fault_injection.fuzzing.surface import Surface
from mpsguard.guard.evidence import Evidence
from mpsguard.guard.sensors.kernel_log import KernelLogSensor

_FAULT: Final = (
    b"NVRM: Xid (PCI:0000:18:00): 31, pid=1234, name=python3, Ch 00000008. MMU Fault: ENGINE GRAPHICS GPC1 "
    b"GPCCLIENT_T1_3 faulted @ 0x7f48_a37a3000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"
)
_TEXTS: Final = (
    _FAULT,
    b"NVRM: Xid (PCI:0000:18:00): 13, Graphics SM Warp Exception on (GPC 0, TPC 2, SM 1): Illegal Address",
    b"NVRM: Xid (PCI:0000:18:00): 43, pid='<unknown>', name=<unknown>, channel 0x00000010",
    b"NVRM: Xid (PCI:0000:18:00 GPU-I:01 GPU-CI:00): 45, pid=77, name=a,b, Ch 0x8 caused by previous Xid 31",
    b"NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
    b"NVRM: Xid (0000:18:00): 79, GPU has fallen off the bus.",
    b"usb 1-1: new device: caf\\xc3\\xa9 \\x1b[2J",
)
_HEADS: Final = (b"4,%d,%d,-;", b"4,%d,%d,c;", b"4,%d,%d,+,caller=T77;", b"12,%d,%d,-;")
_DICTIONARY: Final = b"\n SUBSYSTEM=pci\n DEVICE=+pci:0000:18:00.0\n"
_MOST_BYTES: Final = 8192
"""Of a record, as the kernel has it."""


class Read(msgspec.Struct, frozen=True):
    """What the next reads of the device give: records, or (None) word that some were overwritten."""

    records: tuple[bytes | None, ...]


class KernelLog(Surface[Read]):
    """The sensor, from the device's records to evidence."""

    name = "kernel log"
    share = 100

    def __init__(self) -> None:
        self._loop = CaseLoop()
        self._readable, self._write = os.pipe()
        # There is always something to be read.
        os.write(self._write, b"!")
        self._path = Path(f"/proc/self/fd/{self._readable}")

    def make(self, chance: Random) -> Read:
        """A few records, most of them changed."""
        records: list[bytes | None] = []
        for at in range(1 + index(chance, 4)):
            if chance.random() < 0.05:
                records.append(None)
                continue
            head = _HEADS[index(chance, len(_HEADS))] % (7 + at + 5 * index(chance, 2), 1_000_000 + at)
            text = _TEXTS[index(chance, len(_TEXTS))]
            if chance.random() < 0.6:
                text = changed_text(chance, text, _TEXTS)
            record = head + text + (_DICTIONARY if chance.random() < 0.5 else b"\n")
            records.append((changed_text(chance, record) if chance.random() < 0.3 else record)[:_MOST_BYTES])
        return Read(tuple(records))

    def feed(self, case: Read) -> None:
        """Let the sensor read them."""
        left = list(case.records)
        told: list[Evidence] = []

        def read(_: int, __: int) -> bytes:
            if not left:
                raise BlockingIOError
            record = left.pop(0)
            if record is None:
                raise BrokenPipeError
            return record

        def begin() -> None:
            sensors.append(KernelLogSensor(told.append, after=-1, path=self._path, read=read))

        sensors: list[KernelLogSensor] = []
        try:
            self._loop.turn(begin)
            for sensor in sensors:
                sensor.position()
        finally:
            for sensor in sensors:
                self._loop.turn(sensor.close)
        stored.check(told, judge=len(case.records) == 1)

    def close(self) -> None:
        """Close loop and pipe."""
        self._loop.close()
        os.close(self._readable)
        os.close(self._write)
