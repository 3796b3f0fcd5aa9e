"""Messages of the command ``metrics``."""

import msgspec


class Arguments(msgspec.Struct):
    """None."""


class Exposition(msgspec.Struct, frozen=True):
    """Metrics in Prometheus' text format."""

    text: str
