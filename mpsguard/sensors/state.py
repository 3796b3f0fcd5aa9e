"""What every sensor has in common."""

from typing import Protocol

import msgspec


class SensorState(msgspec.Struct, frozen=True):
    """Whether a sensor can see anything, in one line for ``status``."""

    present: bool
    detail: str
    """Why it is absent, or what it watches and what it missed."""


class Sensor(Protocol):
    """A source of evidence. It is made with the callback it emits to, inside a running event loop."""

    @property
    def name(self) -> str:
        """The word of its `mpsguard.evidence.Source`."""
        ...

    def state(self) -> SensorState:
        """Whether it is there, asked afresh."""
        ...

    def close(self) -> None:
        """Give everything back; safe to call twice."""
        ...
