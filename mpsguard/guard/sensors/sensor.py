"""What every sensor has in common, and the register of all sensors.

A sensor is a class in a module of this package, decorated with `register`: `registered` imports all modules, so that a
new sensor takes a new file and no line elsewhere.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Protocol, Self, TypeVar

import msgspec

from mpsguard.guard import sensors
from mpsguard.guard.evidence import Evidence
from mpsguard.guard.model import Client
from mpsguard.guard.sensors.gpu_core import GpuCore
from mpsguard.guard.sensors.uvm_client import Attachment
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes.process import ProcessHandle

CLOSE_WITHIN: Final = 0.5
"""Seconds for which a sensor that is closed waits for what a stranger holds up. The guard ends within five: those that
wait do so one after the other, and handshakes in progress have two."""


class SensorState(msgspec.Struct, frozen=True):
    """Whether a sensor can see anything, in one line for ``status``."""

    present: bool
    detail: str
    """Why it is absent, or what it watches and what it missed."""


class OnDump(Protocol):
    """Takes a GPU core dump; see `SmErrorSensor.dumped`."""

    def __call__(  # noqa: D102  # the class says it
        self, read: Callable[[], bytes | GpuCore], began: float, process: ProcessKey | None, *, verified: bool = False
    ) -> None: ...


@dataclass(frozen=True)
class SensorSetup:
    """What sensors are opened with."""

    emit: Callable[[Evidence], None]
    """Takes every piece of evidence, in the event loop."""
    kernel_log_after: int | None
    """See `KernelLogSensor`."""
    contained_after: int | None
    """See `KmodSensor`."""
    core_directory: Path | None
    """The directory for GPU core dumps of clients, if there is one."""
    on_dump: OnDump
    """Takes the dumps that are found there."""
    on_attachment: Callable[[Attachment], None]
    """Is called when a client cannot be watched, and when it can be again."""
    simulated: bool = False
    """Whether the driver is simulated (`uvm_simulated`)."""


class Sensor:
    """One source of evidence. Its methods are called in the event loop; none of them waits.

    A sensor leaves out what it does not need.
    """

    name: ClassVar[str]
    """In `mpsguard-ctl status`."""

    @classmethod
    def open(cls, setup: SensorSetup) -> Self | None:
        """Return the sensor, or None where it is not wanted. Absence is a state, not an error.

        Raises:
            OSError: It is wanted, and cannot be had.
        """
        raise NotImplementedError

    def client_came(self, client: Client, handle: ProcessHandle) -> None:
        """Take note of a new client. ``handle`` may be closed afterwards."""

    def client_came_again(self, client: Client, handle: ProcessHandle) -> None:
        """Take note of another connection of a known client."""

    def client_ended(self, client: Client) -> None:
        """Take note of a client's end."""

    def observe(self, evidence: Evidence) -> None:
        """Take note of any sensor's evidence."""

    def state(self) -> SensorState:
        """Return whether the sensor can see anything."""
        raise NotImplementedError

    def close(self) -> None:
        """Give everything back; safe to call twice."""
        raise NotImplementedError


S = TypeVar("S", bound=type[Sensor])

_register: list[type[Sensor]] = []


def register(sensor: S) -> S:
    """Enter a sensor's class, as a decorator."""
    _register.append(sensor)
    return sensor


def registered() -> tuple[type[Sensor], ...]:
    """Return all sensors, by the names of their modules."""
    for module in sorted(found.name for found in pkgutil.iter_modules(sensors.__path__)):
        importlib.import_module(f"{sensors.__name__}.{module}")
    return tuple(_register)
