"""How much may be armed, and what is disarmed when that has become less: arithmetic only, all in bytes.

The rule is the preload's (`zone_layout.allowed`): a quarter of what the card has free beyond a margin. It holds for the
ranges of one space; who arms zones in more than four processes of one card sets `Settings.limit`.
"""

from collections.abc import Iterable

from mpsguard.client.zones.errors import BudgetError
from mpsguard.preload import zone_layout


def most(free: int, memory: int, limit: int) -> int:
    """What may be armed in all once ``memory`` of the ``free`` bytes is taken."""
    return zone_layout.allowed(max(free - memory, 0), zone_layout.MARGIN, limit)


def check(zones: int, *, armed: int, allowed: int, free: int) -> None:
    """BudgetError if ``zones`` bytes cannot be armed beside those that are."""
    if armed + zones > allowed:
        raise BudgetError(
            f"zones of {zones} bytes are wanted beside {armed} that are armed: the card has {free} bytes free, which"
            f" allows {allowed} in all"
        )


def to_shed(armed: Iterable[tuple[int, int]], allowed: int) -> list[int]:
    """Which regions lose their zones so that no more than ``allowed`` bytes stay armed: the oldest, and few.

    ``armed`` has the number of each region and its armed bytes; regions are counted in the order they were made.
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
