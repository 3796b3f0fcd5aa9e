"""Whose kernel an SM stopped in: what GPU core dumps and memory maps say, weighed.

Measured on an H200 with driver 580.159.04 (`gpu_suite/triage`, docs/sm-faults.md): an exception in a thread of a
client's own dump was the culprit's in every fault but `trap`, and never an innocent's; the instruction's address lay in
a range that the culprit alone had reserved.
"""

from collections.abc import Iterable

import msgspec

from mpsguard.evidence import Evidence, OwnDump, SmError
from mpsguard.incident import Confidence
from mpsguard.model import ProcessKey


class Attribution(msgspec.Struct, frozen=True):
    """Who it was, or at least who may have been."""

    culprits: tuple[ProcessKey, ...] = ()
    """More than one: two faults at the same time."""
    confidence: Confidence = Confidence.UNKNOWN
    reason: str = ""
    candidates: tuple[ProcessKey, ...] = ()
    """Without a culprit: whom the evidence leaves; empty if it leaves everybody."""


def whose_code(evidence: Iterable[Evidence], present: Iterable[ProcessKey]) -> Attribution:
    """What the dumps in the evidence of one fault say about the clients that were there."""
    seen = list(evidence)
    there = set(present)
    dumps: dict[ProcessKey, OwnDump] = {}
    for each in seen:
        if isinstance(each.what, OwnDump) and each.process is not None and each.process in there:
            dumps[each.process] = each.what
    raised = sorted(process for process, dump in dumps.items() if dump.raised)
    if raised:
        return Attribution(
            tuple(raised), Confidence.PROVEN, "Its own GPU core dump shows the exception in a thread of its kernel."
        )
    places = [e.what for e in seen if isinstance(e.what, SmError)]
    if places:
        return _by_place(places, there)
    working = [process for process, dump in dumps.items() if dump.grids]
    if len(working) == 1 and set(dumps) == there:
        return Attribution(
            (working[0],), Confidence.LIKELY, "Of all clients' GPU core dumps, its own alone shows a kernel on the GPU."
        )
    return Attribution()


def _by_place(places: Iterable[SmError], there: set[ProcessKey]) -> Attribution:
    """By the addresses of the instructions."""
    culprits: dict[ProcessKey, SmError] = {}
    left: set[ProcessKey] = set()
    for place in places:
        holders = there.intersection(place.holders)
        exact = holders.intersection(place.exact)
        unread = there.intersection(place.unread)
        left |= holders | unread
        # A process' layout is random, and a long range of another one may lie across the address by chance.
        only = holders if len(holders) == 1 else exact
        if len(only) == 1 and not unread:
            culprits[next(iter(only))] = place
    if not culprits:
        return Attribution(candidates=tuple(sorted(left)))
    place = culprits[min(culprits)]
    return Attribution(
        tuple(sorted(culprits)),
        Confidence.LIKELY,
        f"An SM stopped with {place.why} at 0x{place.pc:x}, which is code of no other client.",
    )
