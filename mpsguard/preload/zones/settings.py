"""Settings of a zone space."""

from enum import StrEnum
from typing import Final

import msgspec

from mpsguard.preload.zone_layout import ADDRESS_BITS
from mpsguard.preload.zones.errors import SettingsError

MIB: Final = 1 << 20
_ALIGNMENTS: Final = (256, 2 * MIB)


class ZoneKind(StrEnum):
    """What surrounds a region."""

    TRIPWIRE = "tripwire"
    """Managed ranges: an access gets a page of its own, and the guard is told the process, the place and the
    distance."""
    SPARSE = "sparse"
    """Sparse ranges: reads return zero, writes are lost, and accesses are not reported."""
    NONE = "none"
    """Nothing: the addresses are reserved, and an access is a fault as without mpsguard."""


class ZoneSettings(msgspec.Struct, frozen=True):
    """Sizes in bytes; raises SettingsError for one that is not allowed.

    The settings are those of the preload (docs/guides/preload.md), with one difference: a zone has exactly the
    requested size, or the region is refused.
    """

    front: int = 16 * MIB
    """Bytes of the zone before a region; 0: none."""
    back: int = 64 * MIB
    """Bytes of the zone behind a region; 0: none."""
    limit: int = 1 << 63
    """Maximum bytes of managed ranges in this space; never more than a quarter of the card's free memory."""
    alignment: int = 512
    """Alignment of a region's address: a power of two from 256 to 2 MiB."""
    at_end: bool = True
    """Whether a region ends where its back zone begins, except for alignment; else it begins where its front zone
    ends."""
    kinds: tuple[ZoneKind, ...] = (ZoneKind.TRIPWIRE, ZoneKind.SPARSE, ZoneKind.NONE)
    """Acceptable kinds in order of preference: the first that this machine supports is used."""

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
            raise SettingsError(f"kinds is empty: at least one of {', '.join(ZoneKind)} is needed")
