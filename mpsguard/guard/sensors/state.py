"""What every sensor has in common."""

import msgspec


class SensorState(msgspec.Struct, frozen=True):
    """Whether a sensor can see anything, in one line for ``status``."""

    present: bool
    detail: str
    """Why it is absent, or what it watches and what it missed."""
