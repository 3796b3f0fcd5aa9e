"""The ``kmod`` sensor: faults that the patched nvidia-uvm module has contained (docs/guides/kernel-module.md).

The module keeps a list of poisoned address spaces, and sends a uevent when it grows. The list is what counts: it is
read at the start and at each uevent, so that neither a lost uevent nor a restart of the guard loses a culprit. While
the list is open, the module contains faults; with the stock module there is none.

A line names the process that made the address space, by pid and start time, if that process had not ended when the
fault was reported. That is proof if it is a client of this guard, and a hint otherwise. The pid alone means nothing: it
may be another process's by the time the list is read.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final, Self

from mpsguard.guard.evidence import Evidence, FaultContained, Lost, Source, Trust
from mpsguard.guard.model import Client
from mpsguard.guard.sensors.sensor import Sensor, SensorSetup, SensorState, register
from mpsguard.linux.boot import boot_id
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.nvidia import fault_list
from mpsguard.linux.nvidia.fault_list import ContainedFault, FaultList
from mpsguard.linux.nvidia.uevents import Uevent, Uevents
from mpsguard.linux.processes import procfs
from mpsguard.linux.processes.process import ProcessHandle

_MOST_ENDED: Final = 4096
"""Ended clients that are remembered: what one of them did may be read after its end. The oldest go first."""
MODULE: Final = Path("/sys/module/nvidia_uvm")
_PARAMETER: Final = "uvm_fault_isolation"
_MODES: Final = {"0": "off", "1": "on where a TSG is shared", "2": "on always"}
_CONTAINING: Final = frozenset({"1", "2"})
_DEVPATH: Final = "/module/nvidia_uvm"
_EVENT: Final = "fault_contained"
_BATCH: Final = 64
"""Uevents taken in one turn of the loop: a machine that starts has hundreds of them."""
_CLAIM_WITHIN: Final = 10.0
"""Seconds for which a line waits for the client that it names: a guard that starts has yet to find its clients."""


class ClientRecord:
    """Knows each client that is there, and those that ended last, by the process and its newest program."""

    def __init__(self) -> None:
        self._here: dict[ProcessKey, tuple[ProcessKey, float]] = {}
        self._ended: OrderedDict[ProcessKey, tuple[ProcessKey, float]] = OrderedDict()

    def came(self, client: ProcessKey, at: float) -> None:
        """Note a client that came at ``at`` (CLOCK_MONOTONIC seconds)."""
        self._ended.pop(client.process, None)
        self._here[client.process] = client, at

    def ended(self, client: ProcessKey) -> None:
        """Note its end."""
        known = self._here.get(client.process)
        if known is None or known[0] != client:
            return  # its process has executed another program, which is there
        self._ended[client.process] = self._here.pop(client.process)
        if len(self._ended) > _MOST_ENDED:
            self._ended.popitem(last=False)

    def knows(self, process: ProcessKey) -> bool:
        """Return whether a process is or was a client."""
        return process in self._here or process in self._ended

    def at(self, process: ProcessKey, at: float) -> ProcessKey | None:
        """Return the client that a process was at ``at``; None if it was none, or that is not known.

        A process that has executed another program since was another client then.
        """
        client, came = self._here.get(process) or self._ended.get(process) or (None, 0.0)
        if client is not None and client.execs and at < came:
            return None
        return client


def mode(module: Path = MODULE) -> SensorState:
    """Return whether the loaded module contains faults, as its parameters say."""
    if not module.is_dir():
        return SensorState(present=False, detail="nvidia-uvm is not loaded")
    version, policy = _parameter(module, "_version"), _parameter(module, "")
    if version is None or policy is None:
        return SensorState(present=False, detail="the stock nvidia-uvm is loaded: memory faults are not contained")
    how = _MODES.get(policy, f"in mode {procfs.printable(policy)[:20]!r}, which is unknown here")
    if how in _MODES.values() and policy in _CONTAINING and not _is_heard(module):
        how += ", but not now: no process has the list of contained faults open"
    return SensorState(present=True, detail=f"fault isolation {procfs.printable(version)[:20]}: containment is {how}")


def contains(module: Path = MODULE) -> bool:
    """Return whether the loaded module keeps the memory faults of MPS clients, which share a TSG, with their client."""
    return _parameter(module, "") in _CONTAINING and _is_heard(module)


def _is_heard(module: Path) -> bool:
    return _parameter(module, "_agents") not in (None, "0") or _parameter(module, "_without_agent") == "1"


def _parameter(module: Path, name: str) -> str | None:
    try:
        return (module / "parameters" / f"{_PARAMETER}{name}").read_text().strip()
    except OSError:
        return None


@register
class KmodSensor(Sensor):
    """Emits `FaultContained` for each address space that the module has poisoned.

    Owns the open list, one netlink socket and a timer. ``module``, ``path`` and ``listen`` are for tests.
    """

    name: ClassVar[str] = Source.KMOD.value

    def __init__(
        self,
        emit: Callable[[Evidence], None],
        *,
        after: int | None = None,
        module: Path = MODULE,
        path: Path = fault_list.PATH,
        listen: Callable[[], Uevents] = Uevents,
    ) -> None:
        """Listen, and read the list in the next turn of the loop.

        Args:
            emit: See `SensorSetup`.
            after: Nanoseconds of CLOCK_MONOTONIC; earlier faults are known already. None if none is.
            module: See `mode`.
            path: See `FaultList`.
            listen: Returns the uevents.
        """
        self._emit, self._module, self._path = emit, module, path
        self._taken = -1 if after is None else after
        """Nanoseconds of the newest fault that was read."""
        self._clients = ClientRecord()
        self._unclaimed: dict[ProcessKey, list[ContainedFault]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._events: Uevents | None = None
        self._list: FaultList | None = None
        self._unlisted = "closed"
        """Why the list is not open."""
        self._deaf = "closed"
        """Why uevents are not heard."""
        self.unreadable = 0
        """Lines of the list that were not as they should be."""
        self._loop = asyncio.get_running_loop()
        self._open_list()
        self._first: asyncio.Handle = self._loop.call_soon(self._read)
        try:
            self._events = listen()
        except OSError as error:
            self._deaf = f"no uevents: {error.strerror}"
            return
        self._loop.add_reader(self._events.fileno(), self._drain)

    @classmethod
    def open(cls, setup: SensorSetup) -> Self:
        """See `Sensor`."""
        return cls(setup.emit, after=setup.contained_after)

    def client_came(self, client: Client, handle: ProcessHandle) -> None:
        """See `Sensor`. A line that waited for this client is proof now."""
        del handle
        self._clients.came(client.process, time.monotonic())
        if self._list is None and self._events is not None:
            # The driver may have been loaded for this client.
            self._open_list()
            self._read()
        for fault in self._unclaimed.pop(client.process.process, ()):
            self._grade(fault)

    def client_ended(self, client: Client) -> None:
        """See `Sensor`."""
        self._clients.ended(client.process)

    def state(self) -> SensorState:
        """Return whether the loaded module contains faults, and this sensor learns of it."""
        if self._events is None:
            return SensorState(present=False, detail=self._deaf)
        state = mode(self._module)
        if state.present and self._list is None:
            return SensorState(present=False, detail=f"{state.detail}; {self._unlisted}")
        return state

    def position(self) -> tuple[str, int]:
        """Return boot id and ``after`` for the next sensor: what still waits for its client is not taken yet."""
        waiting = [fault.nanoseconds - 1 for faults in self._unclaimed.values() for fault in faults]
        return boot_id(), min([self._taken, *waiting])

    def close(self) -> None:
        """Stop listening; safe to call twice. The module does not contain another client's fault from here on."""
        self._first.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._close_list("closed")
        self._stop_listening("closed")

    def _drain(self) -> None:
        if self._events is None:
            return
        changed = told = False
        for _ in range(_BATCH):
            try:
                event = self._events.read()
            except OverflowError:
                # The list has what was lost.
                changed = True
                continue
            except OSError as error:
                self._stop_listening(f"uevents cannot be read any more: {error.strerror}")
                break
            if event is None:
                break
            changed |= self._concerns(event)
            told |= event.get("NVIDIA_UVM_EVENT") == _EVENT
        if changed:
            self._read()
        if told and self._list is None:
            self._say(Lost(-1), f"unlisted:{time.monotonic():.6f}")

    def _concerns(self, event: Uevent) -> bool:
        """Return whether the list may have changed; it comes and goes with the module."""
        if event.get("DEVPATH") != _DEVPATH:
            return False
        if event.get("ACTION") == "remove":
            self._close_list("nvidia-uvm is not loaded")
            return False
        return True

    def _read(self) -> None:
        """Take what is new in the list."""
        if self._list is None:
            self._open_list()
        text = self._text()
        if text is None:
            # The module was loaded anew, perhaps, and has another list.
            self._open_list()
            text = self._text()
        faults, unreadable = fault_list.parse(text or b"")
        if unreadable > self.unreadable:
            self._say(Lost(unreadable - self.unreadable), f"unreadable:{unreadable}")
        self.unreadable = unreadable
        for fault in faults:
            if fault.nanoseconds > self._taken:
                self._taken = fault.nanoseconds
                self._take(fault)

    def _text(self) -> bytes | None:
        if self._list is None:
            return None
        try:
            return self._list.read()
        except OSError as error:
            self._close_list(f"the list of contained faults cannot be read: {error.strerror}")
            return None

    def _take(self, fault: ContainedFault) -> None:
        key = ProcessKey(fault.pid, fault.start_ticks)
        if not fault.alive or self._clients.knows(key):
            self._grade(fault)
            return
        self._unclaimed.setdefault(key, []).append(fault)
        if self._timer is None:
            self._timer = self._loop.call_later(_CLAIM_WITHIN, self._give_up_waiting)

    def _give_up_waiting(self) -> None:
        """Grade what no client has come for; what was read a moment ago with it."""
        self._timer = None
        unclaimed, self._unclaimed = self._unclaimed, {}
        for faults in unclaimed.values():
            for fault in faults:
                self._grade(fault)

    def _grade(self, fault: ContainedFault) -> None:
        process, trust = None, Trust.NONE
        if fault.alive:
            key = ProcessKey(fault.pid, fault.start_ticks)
            at = fault.nanoseconds / 1e9
            client = self._clients.at(key, at)
            process, trust = (key, Trust.HINT) if client is None else (client, Trust.PROOF)
        what = FaultContained(fault.address, fault.access, fault.fault_type, fault.engine)
        self._say(what, f"{fault.nanoseconds}:{fault.number}", fault.nanoseconds / 1e9, process, trust)

    def _say(
        self,
        what: FaultContained | Lost,
        serial: str,
        at: float | None = None,
        process: ProcessKey | None = None,
        trust: Trust = Trust.NONE,
    ) -> None:
        self._emit(
            Evidence(
                source=Source.KMOD,
                observed_at=time.monotonic() if at is None else at,
                what=what,
                process=process,
                trust=trust,
                serial=f"kmod:{serial}",
            )
        )

    def _open_list(self) -> None:
        try:
            self._list = FaultList(self._path)
        except OSError as error:
            self._unlisted = f"the list of contained faults cannot be opened: {error.strerror}"

    def _close_list(self, why: str) -> None:
        if self._list is not None:
            self._list.close()
            self._list = None
        self._unlisted = why

    def _stop_listening(self, why: str) -> None:
        if self._events is not None:
            self._loop.remove_reader(self._events.fileno())
            self._events.close()
            self._events = None
        self._deaf = why
