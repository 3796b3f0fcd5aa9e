"""Uevents, those of the patched nvidia-uvm module among them."""

import os
import tempfile
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from fault_injection.fuzzing import stored
from fault_injection.fuzzing.loop import CaseLoop
from fault_injection.fuzzing.mutation import changed_text, index
from fault_injection.fuzzing.surface import BrokenPromiseError, Surface
from mpsguard.guard.evidence import Evidence, FaultContained
from mpsguard.guard.model import Client
from mpsguard.guard.sensors.kmod import KmodSensor
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.nvidia.uevents import Uevent, Uevents, parse
from mpsguard.linux.processes.process import ProcessHandle

_CULPRIT: Final = ProcessKey(4242, 777)
"""The process in the module's list; uevents, of which there may be any, say no more than that it may have changed."""
_LIST: Final = (
    "1 time=5000000000 pid=4242 start=777 alive=1 gone=0 address=0x7f48a37a3000 access=WRITE type=INVALID_PDE "
    "engine=SM gpu=GPU-6d2e0d2f-9c6c-4a8e-a3b7-0f7e6f6a1c11 veid=3\n"
)
_FAULT: Final = (
    b"change@/module/nvidia_uvm\0ACTION=change\0DEVPATH=/module/nvidia_uvm\0SUBSYSTEM=module\0"
    b"NVIDIA_UVM_EVENT=fault_contained\0PID=1\0START=2\0ALIVE=1\0ACCESS=WRITE\0TYPE=INVALID_PDE\0ENGINE=SM\0"
    b"GPU=GPU-6d2e0d2f-9c6c-4a8e-a3b7-0f7e6f6a1c11\0VEID=3\0SEQNUM=4711\0"
)
_MESSAGES: Final = (
    _FAULT,
    _FAULT,
    b"remove@/module/nvidia_uvm\0ACTION=remove\0DEVPATH=/module/nvidia_uvm\0SUBSYSTEM=module\0SEQNUM=4710\0",
    b"add@/devices/pci0000:00/0000:00:01.0/net/eth0\0ACTION=add\0SUBSYSTEM=net\0INTERFACE=eth0\0SEQNUM=4712\0",
    b"libudev\0\xfe\xed\xca\xfe\x28\0\0\0",
)
_MOST_BYTES: Final = 8192


class _Told(Uevents):
    """Says what it was given instead of what the kernel says."""

    def __init__(self, readable: int, messages: tuple[bytes | None, ...]) -> None:
        self._readable = readable
        self._left = list(messages)

    def fileno(self) -> int:
        return self._readable

    def read(self) -> Uevent | None:
        while self._left:
            message = self._left.pop(0)
            if message is None:
                raise OverflowError("uevents were dropped")
            if (event := parse(message)) is not None:
                return event
        return None

    def close(self) -> None:
        """The descriptor is another's."""


class Heard(msgspec.Struct, frozen=True):
    """Messages; None: some were dropped."""

    messages: tuple[bytes | None, ...]


class KernelEvents(Surface[Heard]):
    """The sensor, from messages to evidence."""

    name = "uevents"
    share = 100

    def __init__(self) -> None:
        self._loop = CaseLoop()
        self._readable, self._write = os.pipe()
        # There is always something to be read.
        os.write(self._write, b"!")
        self._directory = tempfile.TemporaryDirectory(prefix="mpsguard-fuzz-")
        self._path = Path(self._directory.name) / "list"
        self._path.write_text(_LIST, encoding="ascii")
        self._handle = ProcessHandle.open(os.getpid())

    def make(self, chance: Random) -> Heard:
        """One to three messages, most of them changed."""
        messages: list[bytes | None] = []
        for _ in range(1 + index(chance, 3)):
            message = _MESSAGES[index(chance, len(_MESSAGES))]
            if chance.random() < 0.8:
                message = changed_text(chance, message, _MESSAGES)
            messages.append(None if chance.random() < 0.02 else message[:_MOST_BYTES])
        return Heard(tuple(messages))

    def feed(self, case: Heard) -> None:
        """Let the sensor hear them."""
        told: list[Evidence] = []
        sensors: list[KmodSensor] = []
        events = _Told(self._readable, case.messages)
        client = Client(_CULPRIT, 1000, 1000, "train", "/", None, None, "default", "default-0", 0.0)

        def open_sensor() -> None:
            sensors.append(KmodSensor(told.append, path=self._path, listen=lambda: events))
            sensors[0].client_came(client, self._handle)

        try:
            self._loop.turn(open_sensor)
        finally:
            for sensor in sensors:
                self._loop.turn(sensor.close)
        stored.check(told, judge=False)
        named = [each.process for each in told if isinstance(each.what, FaultContained)]
        if named not in ([], [_CULPRIT]):
            raise BrokenPromiseError(f"something else than the list says: {told}")

    def close(self) -> None:
        """Give everything back."""
        self._loop.close()
        self._handle.close()
        self._directory.cleanup()
        os.close(self._readable)
        os.close(self._write)
