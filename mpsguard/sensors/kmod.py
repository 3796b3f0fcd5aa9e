"""The ``kmod`` sensor: faults that the patched nvidia-uvm module has contained (docs/guides/kernel-module.md).

One uevent for each address space, at its first contained fault: of the module (``/module/nvidia_uvm``), with PID, VA,
ACCESS, TYPE, ENGINE and GPU. The pid is that of the process that made the address space. That process may be gone, and
its pid another one's by the time the uevent is read: a bare pid is a hint. Newer modules send START (clock ticks after
boot, as /proc/PID/stat has them) and ALIVE (whether the process lives): with both, it is proof against the process that
they match. With the stock module there is nothing to hear.
"""

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final, Self

from mpsguard.evidence import Evidence, FaultContained, Lost, Source, Trust
from mpsguard.linux.nvidia.uevents import Uevent, Uevents
from mpsguard.linux.processes import procfs
from mpsguard.model import ProcessKey
from mpsguard.sensors.sensor import Sensor, SensorSetup, register
from mpsguard.sensors.state import SensorState

MODULE: Final = Path("/sys/module/nvidia_uvm")
EVENT: Final = "fault_contained"
_PARAMETER: Final = "uvm_fault_isolation"
_MODES: Final = {"0": "off", "1": "on where a TSG is shared", "2": "on always"}
_CONTAINING: Final = frozenset({"1", "2"})
_DEVPATH: Final = "/module/nvidia_uvm"
_WORD: Final = re.compile(r"[A-Z0-9_]{1,40}")
_TICKS: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
_BATCH: Final = 64
"""Uevents taken in one turn of the loop: a machine that starts has hundreds of them."""


def contained_fault(event: Uevent) -> tuple[int, FaultContained] | None:
    """The pid and the fault that a uevent tells of; None if it tells of something else, or not as it should."""
    if event.get("DEVPATH") != _DEVPATH or event.get("NVIDIA_UVM_EVENT") != EVENT:
        return None
    try:
        pid, address = int(event["PID"]), int(event["VA"], 16)
        words = [event[name] for name in ("ACCESS", "TYPE", "ENGINE")]
    except (KeyError, ValueError):
        return None
    if pid <= 0 or not 0 <= address < 1 << 64 or not all(_WORD.fullmatch(word) for word in words):
        return None
    access, fault_type, engine = (word.lower().replace("_", " ") for word in words)
    return pid, FaultContained(address=address, access=access, fault_type=fault_type, engine=engine)


def owner(event: Uevent) -> tuple[int, bool] | None:
    """Start time in ticks of the process that made the address space, and whether it lives; None if it is not said."""
    start, alive = event.get("START", ""), event.get("ALIVE", "")
    if not _TICKS.fullmatch(start) or alive not in ("0", "1"):
        return None
    return int(start), alive == "1"


def mode(module: Path = MODULE) -> SensorState:
    """Whether the loaded module contains faults, as its parameters say."""
    if not module.is_dir():
        return SensorState(present=False, detail="nvidia-uvm is not loaded")
    try:
        version = (module / "parameters" / f"{_PARAMETER}_version").read_text().strip()
        policy = (module / "parameters" / _PARAMETER).read_text().strip()
    except OSError:
        return SensorState(present=False, detail="the stock nvidia-uvm is loaded: memory faults are not contained")
    how = _MODES.get(policy, f"in mode {procfs.printable(policy)[:20]!r}, which is unknown here")
    return SensorState(present=True, detail=f"fault isolation {procfs.printable(version)[:20]}: containment is {how}")


def contains(module: Path = MODULE) -> bool:
    """Return whether the loaded module keeps the memory faults of MPS clients, which share a TSG, with their client."""
    try:
        return (module / "parameters" / _PARAMETER).read_text().strip() in _CONTAINING
    except OSError:
        return False


@register
class KmodSensor(Sensor):
    """Emits `FaultContained` for each address space that the module has poisoned. Owns one netlink socket.

    ``module``, ``listen`` and ``key_of`` are for tests.
    """

    name: ClassVar[str] = Source.KMOD.value

    def __init__(
        self,
        emit: Callable[[Evidence], None],
        *,
        module: Path = MODULE,
        listen: Callable[[], Uevents] = Uevents,
        key_of: Callable[[int], ProcessKey] = procfs.process_key,
    ) -> None:
        self._emit, self._module, self._key_of = emit, module, key_of
        self._events: Uevents | None = None
        self._why = "closed"
        self._serial = 0
        self.unreadable = 0
        """Reports of the module that were not as they should be."""
        try:
            self._events = listen()
        except OSError as error:
            self._why = f"no uevents: {error.strerror}"
            return
        asyncio.get_running_loop().add_reader(self._events.fileno(), self._drain)

    @classmethod
    def open(cls, setup: SensorSetup) -> Self:
        """See `Sensor`."""
        return cls(setup.emit)

    def state(self) -> SensorState:
        """Whether the loaded module contains faults and is listened to."""
        return mode(self._module) if self._events is not None else SensorState(present=False, detail=self._why)

    def close(self) -> None:
        """Stop listening; safe to call twice."""
        self._give_up("closed")

    def _drain(self) -> None:
        if self._events is None:
            return
        for _ in range(_BATCH):
            try:
                event = self._events.read()
            except OverflowError:
                self._say(Lost(-1), None)
                continue
            except OSError as error:
                self._give_up(f"uevents cannot be read any more: {error.strerror}")
                return
            if event is None:
                return
            self._take(event)

    def _take(self, event: Uevent) -> None:
        if event.get("NVIDIA_UVM_EVENT") != EVENT:
            return
        found = contained_fault(event)
        if found is None:
            self.unreadable += 1
            return
        pid, fault = found
        try:
            process = self._key_of(pid)
        except OSError:
            process = None  # it is gone already; its queue in the driver may still tell
        said = owner(event)
        if said is not None and process != ProcessKey(pid, said[0]):
            process = None  # the pid is another process's by now
        self._say(fault, process, proven=said is not None and said[1])

    def _say(self, what: FaultContained | Lost, process: ProcessKey | None, *, proven: bool = False) -> None:
        self._serial += 1
        now = time.monotonic()
        trust = Trust.NONE
        if process is not None:
            trust = Trust.PROOF if proven else Trust.HINT
        self._emit(
            Evidence(
                source=Source.KMOD,
                observed_at=now,
                what=what,
                process=process,
                trust=trust,
                serial=f"kmod:{now:.6f}:{self._serial}",
            )
        )

    def _give_up(self, why: str) -> None:
        if self._events is not None:
            asyncio.get_running_loop().remove_reader(self._events.fileno())
            self._events.close()
            self._events = None
            self._why = why
