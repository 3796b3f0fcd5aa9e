"""Messages of the command ``reload``."""

import msgspec


class Arguments(msgspec.Struct):
    """None."""


class Reloaded(msgspec.Struct, frozen=True):
    """What a reload has changed."""

    keys: tuple[str, ...]
    """The keys with a new value, all of which are in force; none if the configuration is as it was."""
