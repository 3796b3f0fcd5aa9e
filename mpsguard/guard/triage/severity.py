"""Severity: how far an Xid or a reading of a GPU reaches, by its number *and* its words. Pure.

The catalog has what a number means by itself. Where the driver's words say more, `QUALIFIERS` has what: an error that
was contained, a recovery action that is None.

The words come after the process' name, a stranger's: of at most 15 bytes (TASK_COMM_LEN of Linux), with commas in it at
will. So a row fits a whole message or none, and the message may begin behind any comma of the first 15 characters:
what a name adds makes no row fit.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

import msgspec

from mpsguard.guard.evidence import DeviceHealth, Evidence, Source, Xid
from mpsguard.guard.incident import FaultClass
from mpsguard.guard.triage import catalog
from mpsguard.guard.triage.catalog import Level
from mpsguard.guard.triage.xid_words import NVLINK5, QUALIFIERS

_NAME_LIMIT: Final = 16
_DOUBLE_BIT: Final = 48
_REMAPPING_FAILED: Final = 64
_LASTING: Final = frozenset({"row_remap_failed", "dram_retirement_failed"})
"""Readings that a reset does not change: the GPU is to be replaced."""
_BY_THE_VENDOR: Final = frozenset({"RESET_GPU", "RESTART_BM", "RESTART_VM", "CHECK_MECHANICALS"})
"""Immediate actions of the vendor's catalog that prove a device fault by the number alone."""
_UNPROVEN: Final = frozenset({"ecc_double_bit", "pcie_fatal_error", "pcie_inaccessible"})
"""Readings from which a GPU may come back by itself."""


class Severity(msgspec.Struct, frozen=True):
    """How far one observation reaches."""

    level: Level
    fault_class: FaultClass | None
    """The class of an incident that it leads to; None if it leads to none by itself."""
    proven: bool = True
    """Of level DEVICE: whether the GPU is certainly of no use until it is reset."""
    closes: bool = False
    """Whether the driver reports that nothing needs to be done with the GPU any more."""
    lasting: bool = False
    """Whether no reset mends it."""
    waits: bool = False
    """Whether another message, at about the same time, says how far it reaches: contained, or not."""


_COMPILED: Final = tuple((row, re.compile(row.words, re.ASCII | re.IGNORECASE)) for row in QUALIFIERS)


def of(evidence: Evidence) -> Severity | None:
    """Return the severity of an observation; None if it tells of no Xid and of no GPU's health.

    NVML tells of an Xid without words.
    """
    what = evidence.what
    if isinstance(what, Xid):
        return of_xid(what.number, "" if evidence.source is Source.NVML else what.text)
    if isinstance(what, DeviceHealth):
        return of_reading(what)
    return None


@lru_cache(maxsize=4096)
def of_xid(number: int, text: str) -> Severity:
    """Return the severity of an Xid with the words behind its number, process and name; "" for no words."""
    entry = catalog.lookup(number)
    row = next((row for row, words in _COMPILED if number in row.numbers and _fits(words, text)), None)
    proven = entry.immediate in _BY_THE_VENDOR and not text
    # Without words an error of a link may be anything: the recovery action, which NVML reads, says what it was.
    level = Level.INFORMATIONAL if number in NVLINK5 and not text else entry.level
    if row is not None:
        level, proven = row.level, row.proven
    waits = level is Level.DEVICE and (number == _DOUBLE_BIT or (number == 95 and row is None))
    return Severity(
        level,
        _class(level, entry.fault_class),
        proven=level is not Level.DEVICE or (proven and not waits),
        closes=row is not None and row.closes,
        lasting=number == _REMAPPING_FAILED and level is Level.DEVICE,
        waits=waits,
    )


def of_reading(what: DeviceHealth) -> Severity:
    """Return the severity of what a GPU's health is, or of what the kernel says of the GPU in other lines than Xids."""
    if not what.fatal:
        return Severity(Level.INFORMATIONAL, None, closes=what.what == "recovery_action" and what.value == 0)
    return Severity(
        Level.DEVICE,
        FaultClass.DEVICE,
        proven=what.what not in _UNPROVEN,
        lasting=what.what in _LASTING,
        waits=what.what == "ecc_double_bit",
    )


def severities(evidence: Iterable[Evidence]) -> list[tuple[Evidence, Severity]]:
    """Return what the observations of one fault tell of Xids and of the GPU's health.

    Where the kernel log has the words of an Xid, NVML's event of the same number says nothing.
    """
    each = [(one, found) for one in evidence if (found := of(one)) is not None]
    worded = {one.what.number for one, _ in each if isinstance(one.what, Xid) and one.source is not Source.NVML}
    return [
        (one, found)
        for one, found in each
        if not (isinstance(one.what, Xid) and one.source is Source.NVML and one.what.number in worded)
    ]


def device_signs(told: Iterable[tuple[Evidence, Severity]]) -> list[tuple[Evidence, Severity]]:
    """Return what tells of a fault of the GPU itself: where an error was contained, not what waits for that."""
    each = list(told)
    contained = any(_contained(one, found) for one, found in each)
    return [(one, found) for one, found in each if found.level is Level.DEVICE and not (found.waits and contained)]


def _contained(evidence: Evidence, found: Severity) -> bool:
    what = evidence.what
    if isinstance(what, Xid):
        return what.number in (94, 95) and found.level is Level.CLIENT
    return isinstance(what, DeviceHealth) and what.what == "poison_contained"


def _class(level: Level, usual: FaultClass | None) -> FaultClass | None:
    if level is Level.DEVICE:
        return FaultClass.DEVICE
    if level in (Level.INFORMATIONAL, Level.UNKNOWN):
        return None
    return FaultClass.ENGINE if usual in (None, FaultClass.DEVICE) and level is not Level.SYMPATHETIC else usual


def _fits(words: re.Pattern[str], text: str) -> bool:
    return any(words.fullmatch(message) for message in _messages(text))


def _messages(text: str) -> Iterator[str]:
    """Yield the message, and what it is if its beginning is the rest of a process' name."""
    yield text.strip()
    for comma in re.finditer(r", *", text[:_NAME_LIMIT]):
        yield text[comma.end() :].strip()
