"""Messages of the command ``lanes``."""

import msgspec

from mpsguard.guard.model import LaneReport


class Arguments(msgspec.Struct):
    """None."""


class LaneList(msgspec.Struct, frozen=True):
    """The lanes, looked at now."""

    lanes: tuple[LaneReport, ...]
