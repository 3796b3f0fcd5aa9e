"""Where the parts of a region lie, and how many bytes of zones may be armed: arithmetic only.

mpsguard/preload/layout.c is the same in C; a test runs the two against each other. All sizes are bytes.
"""

from typing import Final

import msgspec

ADDRESS_BITS: Final = 47
"""What a process has of addresses."""

MARGIN: Final = 512 << 20
"""Left to the program and the driver whatever is armed."""


class ZoneLayout(msgspec.Struct, frozen=True):
    """Reserved addresses: front zone, memory, back zone, in this order and without gaps."""

    front: int
    memory: int
    back: int
    user: int
    """Offset of the user's first byte from the start of the reserved addresses."""

    @property
    def total(self) -> int:
        """Length of the reserved addresses."""
        return self.front + self.memory + self.back


class LayoutError(ValueError):
    """No region can be laid out like that."""


def round_up(value: int, unit: int) -> int:
    """``value`` rounded up to a multiple of ``unit``, a power of two."""
    return (value + unit - 1) & ~(unit - 1)


def plan(size: int, front: int, back: int, *, granularity: int, alignment: int, at_end: bool = True) -> ZoneLayout:
    """Lay out ``size`` bytes; `LayoutError` for a size of 0, or what does not fit into `ADDRESS_BITS`.

    ``granularity`` (of memory and zones) and ``alignment`` (of the user's address) are powers of two, ``alignment`` no
    greater than ``granularity``.
    """
    most = 1 << ADDRESS_BITS
    if not 0 < size <= most or not 0 <= front <= most or not 0 <= back <= most:
        raise LayoutError(f"a region of {size} bytes with zones of {front} and {back}: 1 to {most} bytes are allowed")
    memory = round_up(size, granularity)
    rounded_front = round_up(front, granularity)
    slack = memory - round_up(size, alignment) if at_end else 0
    layout = ZoneLayout(rounded_front, memory, round_up(back, granularity), rounded_front + slack)
    if layout.total > most:
        raise LayoutError(f"a region of {size} bytes with zones of {front} and {back} takes more than {most} bytes")
    return layout


def allowed(free: int, margin: int, limit: int) -> int:
    """How many bytes of zones one process may arm while the card has ``free`` bytes.

    A quarter of what is left over ``margin``, and never more than ``limit``: other clients of the card arm zones too,
    and managed memory beyond what is free can hang the GPU.
    """
    return min(max(free - margin, 0) // 4, limit)


def zone(wanted: int, left: int, granularity: int) -> int:
    """The length of one zone when ``left`` bytes may still be armed.

    What is wanted, but no more than a sixteenth of what is left, in whole units; never less than one unit.
    """
    most = left // 16 & ~(granularity - 1)
    rounded = round_up(wanted, granularity)
    return rounded if rounded <= most else max(most, granularity)
