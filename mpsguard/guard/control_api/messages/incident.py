"""Messages of the command ``incident``."""

import msgspec


class Arguments(msgspec.Struct):
    """Which one."""

    id: str
