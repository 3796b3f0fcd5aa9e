"""The Xid catalog: what each number means to those who share a GPU, with source and date.

The data is ``xid_catalog.json`` beside this file, made by ``scripts/make-catalog``;
``docs/reference/xids.md`` shows it.
"""

from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from mpsguard.incident import FaultClass

DATA: Final = Path(__file__).with_name("xid_catalog.json")


class Level(StrEnum):
    """Whom an Xid concerns under MPS."""

    CLIENT = "client"
    """One client's work did it; the GPU is fine."""
    SYMPATHETIC = "sympathetic"
    """Printed for those who fall with the one who did it, in bursts: never an incident of its own."""
    ENGINE = "engine"
    """An engine or a link stopped on somebody's work; the GPU goes on."""
    DEVICE = "device"
    """The GPU is gone, or is of no use until it is reset."""
    INFORMATIONAL = "informational"
    """Nobody needs to do anything now."""
    UNKNOWN = "unknown"
    """Nobody says in public what it means for those who share a GPU."""


class XidEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One Xid."""

    number: int
    mnemonic: str
    """The vendor's names, the catalog's first where the headers have another one."""
    level: Level
    fault_class: FaultClass | None
    """What triage may take a fault with this Xid for; None if it suggests nothing."""
    explanation: str
    advice: str
    immediate: str
    """The vendor's immediate action, in the vendor's word; empty if the vendor has none."""
    investigatory: str
    source: str
    """Where number, names and actions are from."""
    basis: str
    """Who says that it is of this level."""
    date: str
    """When the row was made from its sources."""
    disputed: str | None = None
    """Which sources disagree about it, and how."""


class XidCatalog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All rows, by number."""

    rows: tuple[XidEntry, ...]


@cache
def catalog() -> dict[int, XidEntry]:
    """The committed catalog, by number; read once."""
    return {row.number: row for row in msgspec.json.decode(DATA.read_bytes(), type=XidCatalog).rows}


def lookup(number: int) -> XidEntry:
    """What is known of an Xid; of a number that no source has, an entry that says so."""
    known = catalog().get(number)
    if known is not None:
        return known
    return XidEntry(
        number=number,
        mnemonic="",
        level=Level.UNKNOWN,
        fault_class=None,
        explanation="This number is in no source that this catalog was made from.",
        advice="Keep the kernel log, and look the number up in the vendor's catalog of today.",
        immediate="",
        investigatory="",
        source="",
        basis="",
        date="",
    )
