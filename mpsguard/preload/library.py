"""Where the built preload is, and the environment that switches it on."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

NAME: Final = "libmpsguard.so"

_LD_PRELOAD: Final = "LD_PRELOAD"


class Placement(StrEnum):
    """Where in its memory, which comes in units of 2 MiB, an allocation lies."""

    END = "end"
    """Its end as near the back zone as alignment allows: an overrun is caught almost at once."""
    START = "start"
    """Its start at the front zone, and as aligned as plain allocations happen to be."""


class Small(StrEnum):
    """What becomes of allocations of at most 1 MiB."""

    SLAB = "slab"
    PLAIN = "plain"


class SecondDriver(StrEnum):
    """Whether a second driver takes over after a neighbour's fault, and when it is made."""

    OFF = "off"
    COLD = "cold"
    """After the fault."""
    HOT = "hot"
    """With the program's first context; it holds GPU memory of its own from then on."""


class RepeatAt(StrEnum):
    """Where a second driver repeats work in flight."""

    ALONE = "alone"
    """Outside of MPS, unless the guard says that it may be beside others."""
    BESIDE = "beside"
    """On the other lane, as a program that is trusted not to have caused the fault."""


class PreloadSettings(msgspec.Struct, frozen=True):
    """What a program under the preload is told; None leaves the preload's own default."""

    front: int | None = None
    """Bytes of zone wanted before each region."""
    back: int | None = None
    """Bytes of zone wanted behind each region; at least 1."""
    limit: int | None = None
    """Bytes of zones armed at most; never more than a quarter of what the card has free."""
    alignment: int | None = None
    """Of allocations: a power of two from 256 to 2 MiB."""
    placement: Placement | None = None
    small: Small | None = None
    snapshots: bool | None = None
    """Whether `mpsguard-ctl snapshot` is served."""
    report: Path | None = None
    """File to which a line with the counters is appended when the program ends."""
    plain_callers: tuple[str, ...] | None = None
    """Beginnings of the file names of libraries that keep plain allocations."""
    second_driver: SecondDriver | None = None
    second_pipe_directory: Path | None = None
    """Pipe directory of the lane that the second driver connects to; None: the guard's for second drivers."""
    second_spare: int | None = None
    """MiB of GPU memory at most for a copy of the program's: with one it goes on with work in flight. 0: none."""
    second_epoch: int | None = None
    """Milliseconds at least between two such copies."""
    second_repetition: RepeatAt | None = None
    second_alone: float | None = None
    """Seconds that work repeated alone may take."""
    second_report: Path | None = None
    """File to which a line is appended when the program is taken over, or refused that."""


class PreloadNotBuiltError(Exception):
    """The preload is not there: it was built without a C compiler, or not at all."""


def path() -> Path:
    """The built library; `PreloadNotBuiltError` if there is none."""
    found = Path(__file__).resolve().with_name(NAME)
    if not found.is_file():
        raise PreloadNotBuiltError(f"{found} is not there: install mpsguard again on a machine with gcc")
    return found


def environment(settings: PreloadSettings, base: Mapping[str, str], *, library: Path | None = None) -> dict[str, str]:
    """``base`` with the preload switched on; other preloads of the program stay, behind it.

    ValueError for a path that LD_PRELOAD cannot hold (it separates at spaces and colons).
    """
    preload = str(library if library is not None else path())
    if any(character in preload for character in " :"):
        raise ValueError(f"{preload}: LD_PRELOAD takes no path with spaces or colons")
    others = [word for word in base.get(_LD_PRELOAD, "").replace(":", " ").split() if word != preload]
    variables = {
        "MPSGUARD_ZONES": "on",
        "MPSGUARD_ZONES_FRONT": settings.front,
        "MPSGUARD_ZONES_BACK": settings.back,
        "MPSGUARD_ZONES_LIMIT": settings.limit,
        "MPSGUARD_ZONES_ALIGNMENT": settings.alignment,
        "MPSGUARD_ZONES_PLACEMENT": settings.placement,
        "MPSGUARD_ZONES_SMALL": settings.small,
        "MPSGUARD_ZONES_SNAPSHOTS": None if settings.snapshots is None else "on" if settings.snapshots else "off",
        "MPSGUARD_ZONES_REPORT": settings.report,
        "MPSGUARD_SECOND_DRIVER": settings.second_driver,
        "MPSGUARD_SECOND_PIPE_DIRECTORY": settings.second_pipe_directory,
        "MPSGUARD_SECOND_SPARE_MIB": settings.second_spare,
        "MPSGUARD_SECOND_EPOCH_MS": settings.second_epoch,
        "MPSGUARD_SECOND_REPETITION": settings.second_repetition,
        "MPSGUARD_SECOND_ALONE_SECONDS": settings.second_alone,
        "MPSGUARD_SECOND_REPORT": settings.second_report,
        "MPSGUARD_ZONES_PLAIN_CALLERS": None if settings.plain_callers is None else ":".join(settings.plain_callers),
    }
    chosen = {name: str(value) for name, value in variables.items() if value is not None}
    return {**base, _LD_PRELOAD: " ".join([preload, *others]), **chosen}
