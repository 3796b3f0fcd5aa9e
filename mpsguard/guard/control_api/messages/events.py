"""Messages of the command ``events``."""

import msgspec

from mpsguard.guard.control_api.protocol import Event


class Arguments(msgspec.Struct):
    """None."""


class EventList(msgspec.Struct, frozen=True):
    """The last events, oldest first."""

    events: tuple[Event, ...]
