"""Rules for work that outlives its client when no other client is there.

With a living client, a server tells in its log of every memory fault. A client that ends with work in flight and was
alone on the lane gets none of that: the server takes no notice and does not clean up. Seen on an H200 (580.159.04): the
kernel log has one Xid 31 that names the server, 0.05 s before the client is seen to have ended; and 0.9 s later the
same work faults again, at the same address, in the address space and in the UVM queue of a client that came since and
had run nothing yet.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from mpsguard import daemon_log
from mpsguard.evidence import Evidence, Lost, ProcessEnded, ServerSays, Source, UvmFault, Xid
from mpsguard.incident import Incident
from mpsguard.model import ProcessKey
from mpsguard.triage.client_history import ClientHistory, Member, when
from mpsguard.triage.evidence_group import BEFORE, EvidenceGroup

SERVER_LAG: Final = 0.4
"""Seconds within which a server has spoken of a fault if it ever will (0.13 s seen)."""

NEWCOMER: Final = 10.0
"""Seconds after a client's coming within which a fault in its queue may be work that an ended client left: it comes as
soon as the newcomer has a context (0.3 s seen)."""

_MMU_XID: Final = 31
_SM_XID: Final = 13
_NOTICES: Final = frozenset(
    {daemon_log.BEGINS, daemon_log.CULPRIT, daemon_log.TEARDOWN, daemon_log.STICKY, daemon_log.EXITED}
)
_FAULTED_AT: Final = re.compile(r"faulted @ 0x([0-9a-f]{1,8})_([0-9a-f]{8})\b", re.IGNORECASE)
_PAGE: Final = 4096


class Unnoticed(msgspec.Struct, frozen=True):
    """A fault that no server noticed: the work of clients of one lane that had all ended."""

    incident: Incident
    pages: frozenset[int]
    lanes: frozenset[str]
    gpu: str | None


def unnoticed_pages(episode: EvidenceGroup) -> frozenset[int]:
    """The pages at which the kernel log says that something faulted, if no client's queue tells of it."""
    if _noticed(episode) or any(isinstance(e.what, UvmFault) and e.what.fatal for e in episode.evidence):
        return frozenset()
    texts = (e.what.text for e in episode.anchors if isinstance(e.what, Xid) and e.what.number == _MMU_XID)
    return frozenset(int(match[1] + match[2], 16) // _PAGE for match in map(_FAULTED_AT.search, texts) if match)


def came_back(fault: Evidence, member: Member | None, unnoticed: Iterable[Unnoticed]) -> Incident | None:
    """The incident whose work a fatal fault in a client's queue is, if it is not the client's own.

    It must be of the same page, GPU and lane, and come soon after the client did. Two programs that fault alike, at
    address 0 say, are not taken for this: of the first one's fault its server or its queue would have told.
    """
    assert isinstance(fault.what, UvmFault)
    if member is None or when(fault) - member.came > NEWCOMER:
        return None
    page = fault.what.address // _PAGE
    for before in unnoticed:
        same_gpu = before.gpu is None or fault.gpu is None or before.gpu == fault.gpu
        if page in before.pages and member.lane in before.lanes and same_gpu and member.came > before.incident.began:
            return before.incident
    return None


def ended_alone(
    episode: EvidenceGroup, population: ClientHistory, was_hit: Callable[[ProcessKey | None], bool]
) -> tuple[Member, ...]:
    """The clients one of whose work a memory fault is that nobody noticed; () if it may have been somebody else's.

    Every client of the lane that was there, or had been until just before, must have ended. The pid of the kernel's
    line must be a client's or a server's: it is right for strangers. A client that an earlier fault had hit is no cause
    of this one.
    """
    lines = [e for e in episode.anchors if isinstance(e.what, Xid)]
    numbers = {e.what.number for e in lines if isinstance(e.what, Xid)}
    if _MMU_XID not in numbers or _SM_XID in numbers or _noticed(episode):
        return ()
    if any(isinstance(e.what, Lost) for e in episode.evidence):
        return ()
    pids = {e.what.pid for e in lines if isinstance(e.what, Xid) and e.source is Source.KERNEL_LOG}
    ends = {e.process for e in episode.evidence if isinstance(e.what, ProcessEnded) and not was_hit(e.process)}
    sign = when(lines[0])
    there = tuple(
        member
        for member in population.all()
        if member.came <= sign and (member.ended is None or member.ended >= sign - BEFORE)
    )
    lanes = {lane for pid in pids if pid is not None for lane in population.lanes_of_server(pid)}
    if len(lanes) == 1:
        # The driver says whose server it was: what is on other lanes has no part in it.
        there = tuple(member for member in there if member.lane in lanes)
    if any(member.process not in ends for member in there):
        return ()
    accounted = {*population.all_servers(), *(member.process.pid for member in there)}
    return there if pids and pids <= accounted else ()


def reason(there: tuple[Member, ...], end: Evidence) -> str:
    """What the verdict rests on; ``end`` is that of the first of them."""
    told = "No client was left, the server took no notice, and no client's queue has a fatal fault"
    if len(there) == 1:
        return f"{told}: the client ended {how(end)} with work in flight."
    return f"{told}: it was work of one of the {len(there)} clients that ended about then."


def how(end: Evidence) -> str:
    """How a client ended, in words."""
    assert isinstance(end.what, ProcessEnded)
    if end.what.execed is not None:
        return f"by executing another program ({end.what.execed} until then)"
    words = f"by signal {end.what.signal}" if end.what.signal else f"with status {end.what.exit_code}"
    return words + (" (out of memory)" if end.what.oom_killed else "")


def _noticed(episode: EvidenceGroup) -> bool:
    """Whether a server tells of it. What it says later than SERVER_LAG is about another fault."""
    return any(
        isinstance(e.what, ServerSays) and e.what.what in _NOTICES and when(e) <= episode.began + SERVER_LAG
        for e in episode.evidence
    )
