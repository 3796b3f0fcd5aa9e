"""The list of contained faults of the patched nvidia-uvm, and clients that come and go between two looks at it."""

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
from mpsguard.guard.evidence import Evidence, Trust
from mpsguard.guard.model import Client
from mpsguard.guard.sensors.kmod import KmodSensor
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.nvidia.uevents import Uevent, Uevents
from mpsguard.linux.processes.process import ProcessHandle

_CLIENTS: Final = tuple(ProcessKey(4000 + pid, 777 + start) for pid in range(3) for start in range(2))
_NAMED: Final = b"%d time=%d pid=%d start=%d alive=1 gone=%d "
_NAMELESS: Final = b"%d time=%d pid=0 start=0 alive=0 gone=%d "
_WHERE: Final = (
    b"address=0x7fff12345000 access=WRITE type=INVALID_PTE engine=SM "
    b"gpu=GPU-6d6f636b-2d67-7075-0001-020304050607 veid=3"
)
_MOST_LINES: Final = 6


class _Changed(Uevents):
    """Says, as long as it is asked, that the list has changed."""

    def __init__(self, readable: int) -> None:
        self._readable = readable

    def fileno(self) -> int:
        return self._readable

    def read(self) -> Uevent | None:
        raise OverflowError("uevents were dropped")

    def close(self) -> None:
        """The descriptor is another's."""


class Listed(msgspec.Struct, frozen=True):
    """A list, and which of the clients have come by then."""

    text: bytes
    clients: tuple[int, ...]


class FaultLists(Surface[Listed]):
    """The sensor, from the list to evidence."""

    name = "list of contained faults"
    share = 100

    def __init__(self) -> None:
        self._loop = CaseLoop()
        self._readable, self._write = os.pipe()
        # There is always something to be read.
        os.write(self._write, b"!")
        self._directory = tempfile.TemporaryDirectory(prefix="mpsguard-fuzz-")
        self._path = Path(self._directory.name) / "list"
        self._handle = ProcessHandle.open(os.getpid())

    def make(self, chance: Random) -> Listed:
        """Some lines, most of them changed, and cut at the end now and then."""
        lines = []
        for number in range(index(chance, _MOST_LINES)):
            client = _CLIENTS[index(chance, len(_CLIENTS))]
            head = (number + 1, 5_000_000_000 + number)
            gone = index(chance, 2)
            if chance.random() < 0.7:
                line = _NAMED % (*head, client.pid, client.start_ticks, gone) + _WHERE
            else:
                line = _NAMELESS % (*head, gone) + _WHERE
            lines.append(changed_text(chance, line, (line, _WHERE)) if chance.random() < 0.5 else line)
        text = b"\n".join(lines) + (b"\n" if chance.random() < 0.9 else b"")
        return Listed(text, tuple(at for at in range(len(_CLIENTS)) if chance.random() < 0.5))

    def feed(self, case: Listed) -> None:
        """Let the sensor read it."""
        told: list[Evidence] = []
        sensors: list[KmodSensor] = []
        self._path.write_bytes(case.text)

        def open_sensor() -> None:
            sensor = KmodSensor(told.append, path=self._path, listen=lambda: _Changed(self._readable))
            sensors.append(sensor)
            for at in case.clients:
                sensor.client_came(_client(_CLIENTS[at]), self._handle)

        try:
            self._loop.turn(open_sensor)
        finally:
            for sensor in sensors:
                self._loop.turn(sensor.close)
        stored.check(told, judge=True)
        clients = {_CLIENTS[at] for at in case.clients}
        for each in told:
            if each.trust is Trust.PROOF and each.process not in clients:
                raise BrokenPromiseError(f"proof against a process that is no client: {each}")

    def close(self) -> None:
        """Give everything back."""
        self._loop.close()
        self._handle.close()
        self._directory.cleanup()
        os.close(self._readable)
        os.close(self._write)


def _client(process: ProcessKey) -> Client:
    return Client(process, 1000, 1000, "train", "/", None, None, "default", "default-0", 0.0)
