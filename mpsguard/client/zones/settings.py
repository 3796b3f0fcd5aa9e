"""What zones a space shall have."""

from enum import StrEnum
from typing import Final

import msgspec

from mpsguard.client.zones.errors import SettingsError
from mpsguard.preload.zone_layout import ADDRESS_BITS

MIB: Final = 1 << 20
_ALIGNMENTS: Final = (256, 2 * MIB)


class Kind(StrEnum):
    """What lies around a region."""

    TRIPWIRE = "tripwire"
    """Managed ranges: an access is served with a page of its own, and the guard is told who, where and how far off."""
    SPARSE = "sparse"
    """Sparse ranges: reads give zero, writes are lost, and nobody is told."""
    NONE = "none"
    """Nothing: the addresses are reserved, and an access there is the fault that it is without mpsguard."""


class Settings(msgspec.Struct, frozen=True):
    """Sizes in bytes; SettingsError for one that is not allowed.

    They are those of the preload (docs/guides/preload.md), but for this: a zone has the size that was asked for, or the
    region is refused.
    """

    front: int = 16 * MIB
    """Zone before a region; 0: none."""
    back: int = 64 * MIB
    """Zone behind it; 0: none."""
    limit: int = 1 << 63
    """Most bytes of managed ranges in this space; never more than a quarter of what the card has free."""
    alignment: int = 512
    """Of a region's address: a power of two from 256 to 2 MiB."""
    at_end: bool = True
    """Whether a region ends where its back zone begins, but for alignment; else it begins where its front zone ends."""
    kinds: tuple[Kind, ...] = (Kind.TRIPWIRE, Kind.SPARSE, Kind.NONE)
    """The kinds that will do: the first that this machine has is taken."""

    def __post_init__(self) -> None:
        for name in ("front", "back", "limit"):
            value: int = getattr(self, name)
            most = 1 << (63 if name == "limit" else ADDRESS_BITS)
            if not 0 <= value <= most:
                raise SettingsError(f"{name} = {value}: 0 to {most} bytes are allowed")
        least, most = _ALIGNMENTS
        if not least <= self.alignment <= most or self.alignment & (self.alignment - 1):
            raise SettingsError(f"alignment = {self.alignment}: a power of two from {least} to {most} is allowed")
        if not self.kinds:
            raise SettingsError(f"kinds is empty: at least one of {', '.join(Kind)} is needed")
