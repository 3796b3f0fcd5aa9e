"""Attribution of SM faults to processes, by GPU core dumps: the clients' own, and the addresses at which SMs stopped.

Their worth was measured under MPS (H200, driver 580.159.04, `scripts/gpu-suite sm`): an exception in a thread of a
client's own dump was the culprit's in every fault but `trap`, and never an innocent client's; the instruction's address
lay in a range that the culprit alone had reserved.

Dumps are files that clients write. So a dump is evidence about its writer alone, an address counts only from the
sentinel or from a client of the affected lane, and no process is named if there could be two.
"""

from collections.abc import Iterable, Sequence

import msgspec

from mpsguard.guard.evidence import Evidence, OwnDump, SmError, Trust
from mpsguard.guard.incident import Ground
from mpsguard.linux.identity import ProcessKey


class Attribution(msgspec.Struct, frozen=True):
    """The culprit of an SM fault, or the candidates."""

    culprits: tuple[ProcessKey, ...] = ()
    """More than one: two faults at the same time, each proven."""
    ground: Ground | None = None
    reason: str = ""
    candidates: tuple[ProcessKey, ...] = ()
    """Without a culprit: the processes that the evidence leaves; empty if it leaves all."""


def attribute_sm_fault(evidence: Iterable[Evidence], present: Iterable[ProcessKey]) -> Attribution:
    """Return what the dumps of one fault say about the clients that were on the lane."""
    seen = list(evidence)
    there = set(present)
    dumps = {
        each.process: (each.what, each.trust)
        for each in seen
        if isinstance(each.what, OwnDump) and each.process is not None and each.process in there
    }
    raised = sorted(process for process, (dump, _) in dumps.items() if dump.raised)
    verified = tuple(process for process in raised if dumps[process][1] is Trust.PROOF)
    if verified:
        return Attribution(
            verified, Ground.OWN_DUMP, "Its own GPU core dump shows the exception in a thread of its kernel."
        )
    if len(raised) > 1:
        return Attribution(candidates=tuple(raised))
    if raised:
        return Attribution(
            tuple(raised),
            Ground.OWN_DUMP_UNVERIFIED,
            "A GPU core dump under its name shows the exception; that the process wrote it itself was not seen.",
        )
    places = [each.what for each in seen if isinstance(each.what, SmError)]
    sentinels = [place for place in places if place.writer is None]
    if sentinels:
        return _by_place(sentinels, there, Ground.SENTINEL_PLACE)
    clients = [place for place in places if place.writer in there]
    if clients:
        return _by_place(clients, there, Ground.CLIENT_PLACE)
    working = [process for process, (dump, _) in dumps.items() if dump.grids]
    if len(working) == 1 and set(dumps) == there:
        return Attribution(
            (working[0],),
            Ground.LONE_KERNEL,
            "Of all clients' GPU core dumps, its own alone shows a kernel on the GPU.",
        )
    return Attribution()


def _by_place(places: Sequence[SmError], there: set[ProcessKey], ground: Ground) -> Attribution:
    """Attribute by the instructions' addresses: all of them must belong to the same client."""
    left: set[ProcessKey] = set()
    found: set[ProcessKey | None] = set()
    for place in places:
        unread = there.intersection(place.unread)
        left |= there.intersection(place.holders) | unread
        # Address space layouts are random, and a long range of another process may contain the address by chance.
        exact = there.intersection(place.exact)
        found |= exact if len(exact) == 1 and not unread else {None}
    culprit = found.pop() if len(found) == 1 else None
    if culprit is None:
        return Attribution(candidates=tuple(sorted(left)))
    return Attribution(
        (culprit,),
        ground,
        f"An SM stopped with {places[0].why} at 0x{places[0].pc:x}, which is code of no other client.",
    )
