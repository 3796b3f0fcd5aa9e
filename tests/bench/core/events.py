"""The JSON lines that the client programs print (`fault_injection/cuda/json_line.h` says what is in them)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FINISHED, DIED, FAILED = "finished", "died", "failed"
MPS_SERVER_NOT_READY = 807
"""CUDA_ERROR_MPS_SERVER_NOT_READY (cuda.h): what a client meets while the server recovers from a fault."""

DEVICES_UNAVAILABLE = 46
"""cudaErrorDevicesUnavailable (driver_types.h): what a client's first context meets before the server says so."""


@dataclass(frozen=True)
class Event:
    """One line: what happened, and when on both clocks (seconds)."""

    name: str
    pid: int
    monotonic: float
    realtime: float
    members: Mapping[str, object]

    def number(self, member: str) -> float:
        """A numeric member; 0 if the event does not have it."""
        value = self.members.get(member, 0)
        return float(value) if isinstance(value, int | float) else 0.0


def parse_event(line: str) -> Event | None:
    """One line of output as an event; None for anything else a program may print."""
    try:
        members = json.loads(line)
        return Event(
            str(members.pop("event")),
            int(members.pop("pid")),
            float(members.pop("monotonic")),
            float(members.pop("realtime")),
            members,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


@dataclass(frozen=True)
class Outcome:
    """How a client program ended."""

    label: str
    pid: int
    exit_status: int
    events: Sequence[Event]
    noise: Sequence[str]
    """What it printed that was no event, the last lines of it."""

    @property
    def ok(self) -> bool:
        """True if it finished its work."""
        return self.exit_status == 0 and self.find(FINISHED) is not None

    @property
    def code(self) -> int:
        """The CUDA error that ended it or kept it from starting; 0 if there was none."""
        event = self.find(DIED) or self.find(FAILED)
        return int(event.number("code")) if event else 0

    @property
    def iterations(self) -> int:
        """Kernels that came back."""
        event = self.find(FINISHED) or self.find(DIED)
        return int(event.number("iterations")) if event else 0

    def find(self, name: str) -> Event | None:
        """The first event of that name."""
        return next((event for event in self.events if event.name == name), None)

    def between(self, first: str, second: str) -> float:
        """Seconds from one event to another; ValueError if one is missing."""
        begin, end = self.find(first), self.find(second)
        if begin is None or end is None:
            raise ValueError(f"client {self.label} has no {first} or no {second}: {self.describe()}")
        return end.monotonic - begin.monotonic

    def describe(self) -> str:
        """One line for an error message."""
        last = self.events[-1] if self.events else None
        said = f"{last.name} {dict(last.members)}" if last else "no event"
        return f"{self.label} (pid {self.pid}) ended with status {self.exit_status}; {said}; {' | '.join(self.noise)}"
