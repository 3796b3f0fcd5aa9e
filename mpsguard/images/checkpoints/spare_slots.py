"""Slots of the spare memory, to which the writer sets pieces aside. Pure."""

from collections.abc import Callable


class SpareSlots:
    """Slots of one piece each: free, or holding a piece that the copier has not yet read."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots - 1, -1, -1))
        self._held: dict[int, int] = {}
        """Slot by piece."""

    def take(self, numbers: list[int], is_copied: Callable[[int], bool]) -> list[tuple[int, int]]:
        """Give slots to as many of the pieces as there are free ones; return (piece, slot) in the pieces' order.

        A slot is free again when the copier has read the piece in it.
        """
        if len(self._free) < len(numbers):
            for number in [each for each in self._held if is_copied(each)]:
                self._free.append(self._held.pop(number))
            # Ascending from the end, so that neighbours go to neighbouring slots and are copied in one go.
            self._free.sort(reverse=True)
        count = min(len(numbers), len(self._free))
        kept = len(self._free) - count
        given = list(zip(numbers[:count], reversed(self._free[kept:]), strict=True))
        del self._free[kept:]
        self._held.update(given)
        return given

    def empty(self) -> None:
        """Take all slots back: the checkpoint has ended."""
        self._free = sorted([*self._free, *self._held.values()], reverse=True)
        self._held = {}


def copies(given: list[tuple[int, int]], most: int) -> list[tuple[range, range]]:
    """Return the copies that bring pieces to their slots: consecutive pieces to consecutive slots, at most ``most``."""
    found: list[tuple[range, range]] = []
    for number, slot in given:
        if found:
            pieces, slots = found[-1]
            if number == pieces.stop and slot == slots.stop and len(pieces) < most:
                found[-1] = range(pieces.start, number + 1), range(slots.start, slot + 1)
                continue
        found.append((range(number, number + 1), range(slot, slot + 1)))
    return found
