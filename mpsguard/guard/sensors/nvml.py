"""The `nvml` sensor: Xid, ECC, poison and recovery-action events and the health of the GPUs, from the vendor's library.

NVML waits for events in a blocking call, and others of its calls block while a GPU recovers: everything that touches it
runs on one thread of this sensor, which hands evidence to the event loop. Under MPS an event names no process, and it
comes after the kernel log's line (on an H200 0.1..4 ms after that of an SM fault, 20 ms for an MMU fault): it confirms.
"""

import asyncio
import ctypes
import importlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Self, TypeVar, cast

from mpsguard.guard.evidence import DeviceHealth, Evidence, Lost, Observation, Source, Trust
from mpsguard.guard.sensors.nvml_device import (
    GPU_IS_LOST,
    Device,
    GpuReading,
    MemoryReading,
    NvmlLibrary,
    error_code,
    is_of_device,
    observation,
)
from mpsguard.guard.sensors.sensor import Sensor, SensorSetup, SensorState, register

_WAIT_MS: Final = 250
"""Longest wait for an event, and so for the thread to notice that it shall end."""
_JOIN: Final = 1.0
"""Seconds `close` waits for the thread. A call into a driver that hangs cannot be broken off: it is left behind."""
_REOPEN_AFTER: Final = 5.0
"""Seconds after which NVML is opened anew when waiting for events has failed."""
_MEMORY_READ: Final = 5.0
"""Seconds between two readings of the clients' memory: scrapers ask every 15 s or more rarely."""
_MEMORY_WATCHED: Final = 0.7
"""The same while limits are watched: with `_WAIT_MS` that makes a reading each 0.75 s, at a cost below 0.1 % of a core
(twice a second it was up to 0.14 %; H100)."""
_MEMORY_WANTED: Final = 120.0
"""Seconds after the last question for which it is read: two scrapes a minute apart, and one that failed."""

_TIMEOUT: Final = 10
"""NVML_ERROR_TIMEOUT."""

_T = TypeVar("_T")


@register
class NvmlSensor(Sensor):
    """Owns a thread that listens to NVML. Made inside a running event loop; ``emit`` is called there."""

    name: ClassVar[str] = Source.NVML.value

    def __init__(
        self,
        emit: Callable[[Evidence], None],
        library: NvmlLibrary | None = None,
        *,
        changed: Callable[[SensorState], None] | None = None,
    ) -> None:
        """Start to listen, by ``pynvml`` if no ``library`` is given; ``changed`` hears of every new state."""
        self._emit = emit
        self._library = library
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._closing = threading.Event()
        self._state = SensorState(False, "starting")
        self._devices: dict[int, Device] = {}
        self._unheard: list[str] = []
        self._idleness_wanted = False
        self._idle_seen_at: float | None = None
        self._memory: Mapping[tuple[int, str], int] = {}
        self._gpus: tuple[GpuReading, ...] = ()
        self._memory_watch: Callable[[MemoryReading], None] | None = None
        self._memory_read_at = self._memory_wanted_until = float("-inf")
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, setup: SensorSetup) -> Self:
        """See `Sensor`."""
        return cls(setup.emit)

    def state(self) -> SensorState:
        """Present once the events of at least one GPU are awaited."""
        return self._state

    def watch_idleness(self, wanted: bool) -> None:
        """Whether to look, a few times a second, if any GPU has anything to do."""
        self._idleness_wanted = wanted

    def idle_seen_at(self) -> float | None:
        """When no GPU was last seen to be at work (CLOCK_MONOTONIC); the reading looks back a second at most."""
        return self._idle_seen_at

    def memory(self) -> Mapping[tuple[int, str], int]:
        """Return the bytes of each client by pid and GPU, as read some seconds ago.

        They are read only while they are asked for: the first answer is empty.
        """
        self._want_memory()
        return self._memory

    def gpus(self) -> tuple[GpuReading, ...]:
        """Return the GPUs with their memory, read as that of the clients is."""
        self._want_memory()
        return self._gpus if self._state.present else ()

    def _want_memory(self) -> None:
        self._memory_wanted_until = time.monotonic() + _MEMORY_WANTED

    def watch_memory(self, take: Callable[[MemoryReading], None] | None) -> None:
        """Read the clients' memory each 0.75 s from now on, and give each reading to ``take``; None: no more.

        ``take`` is called in the event loop. While NVML is absent or held up there are no readings.
        """
        self._memory_watch = take

    def close(self) -> None:
        """End the thread, which takes up to 250 ms; nothing is emitted any more. Safe to call twice."""
        self._closing.set()
        self._thread.join(_JOIN)

    def _run(self) -> None:
        try:
            library = self._library or cast(NvmlLibrary, importlib.import_module("pynvml"))
            # A driver that is not there at the start is not waited for; one that was there (reload, reset) is.
            while self._listen(library) and not self._closing.wait(_REOPEN_AFTER):
                pass
        except ImportError as error:
            self._is(False, f"no library: {error}")
        except AttributeError as error:
            self._is(False, f"the library is too old: {error}")
        finally:
            if self._state.present:
                self._is(False, "closed")

    def _listen(self, library: NvmlLibrary) -> bool:
        """Open, wait for events until closed or NVML fails, give everything back; whether it ever got to waiting."""
        try:
            library.nvmlInit()
        except library.NVMLError as error:
            self._is(False, f"nvmlInit: {error}")
            return bool(self._devices)
        try:
            self._hear(library)
        except library.NVMLError as error:
            self._is(False, f"NVML: {error}")
        finally:
            self._ignoring(library, library.nvmlShutdown)
        return bool(self._devices)

    def _hear(self, library: NvmlLibrary) -> None:
        events = library.nvmlEventSetCreate()
        try:
            if not self._open_devices(library, events):
                return
            self._is(True, self._described())
            try:
                self._wait(library, events)
            except library.NVMLError as error:
                self._failed(error)
        finally:
            self._ignoring(library, library.nvmlEventSetFree, events)

    def _open_devices(self, library: NvmlLibrary, events: Any) -> bool:
        """Register each GPU; one that cannot be is left out and named in the state. False if none is left."""
        devices: dict[int, Device] = {}
        known = {device.address: device.known for device in self._devices.values()}
        self._unheard = []
        for index in range(library.nvmlDeviceGetCount()):
            where = f"GPU {index}"
            try:
                handle = library.nvmlDeviceGetHandleByIndex(index)
                device = Device(library, handle)
                where = device.address
                device.known.update(known.get(where, {}))
                less = device.register(events)
            except library.NVMLError as error:
                self._unheard.append(f"{where}: {error}")
                continue
            if less:
                self._unheard.append(f"{where}: {less}")
            devices[_identity(handle)] = device
            self._read_health(device)
        if not devices:
            self._is(False, "; ".join(self._unheard) or "no GPU")
            return False
        self._devices = devices
        return True

    def _described(self) -> str:
        watched = ", ".join(device.address for device in self._devices.values())
        return "; ".join([f"watching {watched}", *self._unheard])

    def _wait(self, library: NvmlLibrary, events: Any) -> None:
        while not self._closing.is_set():
            if self._idleness_wanted:
                self._look_for_work()
            self._read_memory()
            try:
                event = library.nvmlEventSetWait_v2(events, _WAIT_MS)
            except library.NVMLError as error:
                if error_code(error) == _TIMEOUT:
                    continue
                raise
            observed_at = time.monotonic()
            device = self._devices.get(_identity(event.device))
            seen = observation(library, event)
            self._say(seen, observed_at, device)
            if device is not None and is_of_device(seen):
                self._read_health(device)

    def _look_for_work(self) -> None:
        asked_at = time.monotonic()
        if all(device.idle() for device in self._devices.values()):
            self._idle_seen_at = asked_at

    def _read_memory(self) -> None:
        now = time.monotonic()
        take = self._memory_watch
        since = now - self._memory_read_at
        if not (since >= _MEMORY_WATCHED if take else now < self._memory_wanted_until and since >= _MEMORY_READ):
            return
        self._memory_read_at = now
        devices = tuple(self._devices.values())
        answers = {device.identity: found for device in devices if (found := device.memory()) is not None}
        if now < self._memory_wanted_until:
            self._gpus = tuple(device.reading() for device in devices)
        self._memory = {(pid, gpu.address): size for gpu, found in answers.items() for pid, size in found.items()}
        if take is not None:
            every = tuple(device.identity for device in devices)
            self._hand_over(take, MemoryReading(now, tuple(answers), every, self._memory))

    def _failed(self, error: Exception) -> None:
        self._is(False, f"nvmlEventSetWait: {error}; opened again in {_REOPEN_AFTER:g} s")
        if error_code(error) == GPU_IS_LOST:
            # NVML does not say which: the one that answers so does. If none does, the kernel log's Xid 79 may.
            lost: list[Device | None] = [each for each in self._devices.values() if each.is_lost()]
            for device in lost or [None]:
                self._say(DeviceHealth("gpu_lost", 1, True), time.monotonic(), device)
        self._say(Lost(-1), time.monotonic(), None)

    def _read_health(self, device: Device) -> None:
        for news in device.news():
            self._say(news, time.monotonic(), device)

    def _say(self, what: Observation, observed_at: float, device: Device | None) -> None:
        address = None if device is None else device.address
        evidence = Evidence(source=Source.NVML, observed_at=observed_at, what=what, gpu=address, trust=Trust.NONE)
        self._hand_over(self._emit, evidence)

    def _is(self, present: bool, detail: str) -> None:
        self._state = SensorState(present, detail)
        if self._changed is not None:
            self._hand_over(self._changed, self._state)

    def _hand_over(self, receive: Callable[[_T], None], what: _T) -> None:
        def unless_closed() -> None:
            if not self._closing.is_set():
                receive(what)

        try:
            self._loop.call_soon_threadsafe(unless_closed)
        except RuntimeError:
            # The loop was closed without us, and wants no more.
            self._closing.set()

    @staticmethod
    def _ignoring(library: NvmlLibrary, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except library.NVMLError:
            # It is being given back: what cannot be is lost with the driver's state.
            return


def _identity(handle: Any) -> int:
    """The address a handle points to: ctypes makes a new pointer object at each access."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
