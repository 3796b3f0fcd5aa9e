"""What the control daemon remembers for servers to come."""

import re

_LIMIT = re.compile(r"(\d+)([GM])$")


class Defaults:
    """Settings handed to each new server."""

    def __init__(self) -> None:
        self.percentage = 100.0
        self.priority = 0
        self.pinned_limits: dict[str, str] = {}


def limit_in_bytes(text: str) -> int | None:
    """`2G` or `512M` in bytes; nothing for anything else."""
    found = _LIMIT.match(text)
    return None if found is None else int(found[1]) << (30 if found[2] == "G" else 20)


def limit_as_text(limit: int) -> str:
    """Bytes as the daemon prints them."""
    return f"{limit >> 30}G" if limit and limit % (1 << 30) == 0 else f"{limit >> 20}M"
