"""The Xid catalog: what each number means to the clients that share a GPU, with source and date.

The data is ``xid_catalog.json`` beside this file, made by ``scripts/make-catalog``;
``docs/reference/xids.md`` shows it.
"""

from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from mpsguard.guard.incident import FaultClass

DATA: Final = Path(__file__).with_name("xid_catalog.json")


class Level(StrEnum):
    """The scope of an Xid under MPS."""

    CLIENT = "client"
    """One client's work caused it; the GPU is fine."""
    SYMPATHETIC = "sympathetic"
    """Logged for the clients that fail with the culprit, in bursts: never an incident of its own."""
    ENGINE = "engine"
    """An engine or a link stopped on a client's work; the GPU goes on."""
    DEVICE = "device"
    """The GPU is gone, or unusable until it is reset."""
    INFORMATIONAL = "informational"
    """No action is needed now."""
    UNKNOWN = "unknown"
    """No public source says what it means for the clients that share a GPU."""


class XidEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One Xid."""

    number: int
    mnemonic: str
    """The vendor's names: the catalog's, then the headers' if it differs."""
    level: Level
    fault_class: FaultClass | None
    """The class that triage may give a fault with this Xid; None if it suggests none."""
    explanation: str
    advice: str
    immediate: str
    """The vendor's term for the immediate action; empty if the vendor has none."""
    investigatory: str
    source: str
    """The source of number, names and actions."""
    basis: str
    """The source of the level."""
    date: str
    """When the row was made from its sources."""
    disputed: str | None = None
    """The disagreement between sources, if there is any."""


class XidCatalog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All rows, by number."""

    rows: tuple[XidEntry, ...]


@cache
def catalog() -> dict[int, XidEntry]:
    """Return the committed catalog, by number; it is read once."""
    return {row.number: row for row in msgspec.json.decode(DATA.read_bytes(), type=XidCatalog).rows}


def lookup(number: int) -> XidEntry:
    """Return the entry of an Xid; for a number that no source has, an entry that says so."""
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
