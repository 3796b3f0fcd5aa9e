"""How many bytes of zones may be armed, and which zones are disarmed when memory gets short. Pure; all in bytes.

The rule is the preload's (`zone_layout.allowed`): a quarter of the card's free memory beyond a margin. It applies to
one space; with armed zones in more than four processes of one card, set `Settings.limit`.
"""

from collections.abc import Iterable

from mpsguard.preload import zone_layout
from mpsguard.preload.zones.errors import BudgetError


def most(free: int, memory: int, limit: int) -> int:
    """Return the limit of armed bytes once ``memory`` of the ``free`` bytes is allocated."""
    return zone_layout.allowed(max(free - memory, 0), zone_layout.MARGIN, limit)


def check(zones: int, *, armed: int, allowed: int, free: int) -> None:
    """Raise BudgetError if ``zones`` bytes cannot be armed in addition to ``armed``."""
    if armed + zones > allowed:
        raise BudgetError(
            f"zones of {zones} bytes are wanted beside {armed} that are armed: the card has {free} bytes free, which"
            f" allows {allowed} in all"
        )


def to_shed(armed: Iterable[tuple[int, int]], allowed: int) -> list[int]:
    """Return the regions that lose their zones so that at most ``allowed`` bytes stay armed: the oldest first.

    ``armed`` has number and armed bytes of each region; numbers increase in order of creation.
    """
    held = sorted((number, length) for number, length in armed if length)
    total = sum(length for _, length in held)
    shed = []
    for number, length in held:
        if total <= allowed:
            break
        shed.append(number)
        total -= length
    return shed
