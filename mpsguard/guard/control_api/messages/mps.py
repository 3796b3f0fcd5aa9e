"""Messages of the command ``mps``."""

import msgspec


class Arguments(msgspec.Struct):
    """One command line."""

    line: str
    domain: str | None = None
