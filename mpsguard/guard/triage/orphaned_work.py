"""Rules for orphaned work: work that outlives its client when no other client is there.

With a living client, a server logs every memory fault. If a client ends with work in flight and was alone on the lane,
the server does not notice the fault, and does not clean up. Seen on an H200 (580.159.04): the kernel log has one Xid 31
that names the server, 0.05 s before the client is seen to have ended; 0.9 s later the same work faults again, at the
same address, in the address space and in the UVM queue of a client that arrived since and had run nothing yet.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from mpsguard.guard import daemon_log
from mpsguard.guard.evidence import Evidence, Lost, ProcessEnded, ServerSays, Source, UvmFault, Xid
from mpsguard.guard.incident import Incident
from mpsguard.guard.triage.client_history import ClientHistory, when
from mpsguard.guard.triage.evidence_group import BEFORE, EvidenceGroup
from mpsguard.guard.triage.lane_history import ClientStay
from mpsguard.linux.identity import ProcessKey

SERVER_LAG: Final = 0.4
"""Seconds within which a server logs a fault if it notices it at all (0.13 s seen)."""

NEWCOMER: Final = 10.0
"""Seconds after a client's arrival within which a fault in its queue may be work that an ended client left: it appears
as soon as the newcomer has a context (0.3 s seen)."""

_MMU_XID: Final = 31
_SM_XID: Final = 13
_NOTICES: Final = frozenset(
    {daemon_log.BEGINS, daemon_log.CULPRIT, daemon_log.TEARDOWN, daemon_log.STICKY, daemon_log.EXITED}
)
_FAULTED_AT: Final = re.compile(r"faulted @ 0x([0-9a-f]{1,8})_([0-9a-f]{8})\b", re.IGNORECASE)
_PAGE: Final = 4096


class Unnoticed(msgspec.Struct, frozen=True):
    """A fault that no server noticed: work of clients of one lane that had all ended."""

    incident: Incident
    pages: frozenset[int]
    lanes: frozenset[str]
    gpu: str | None


def unnoticed_pages(group: EvidenceGroup) -> frozenset[int]:
    """Return the pages that faulted according to the kernel log; none if a server or a client's queue has the fault."""
    if _noticed(group) or any(isinstance(e.what, UvmFault) and e.what.fatal for e in group.evidence):
        return frozenset()
    texts = (e.what.text for e in group.anchors if isinstance(e.what, Xid) and e.what.number == _MMU_XID)
    return frozenset(int(match[1] + match[2], 16) // _PAGE for match in map(_FAULTED_AT.search, texts) if match)


def came_back(fault: Evidence, stay: ClientStay | None, unnoticed: Iterable[Unnoticed]) -> Incident | None:
    """Return the earlier incident with the work that caused a fatal fault in a client's queue; None if it is its own.

    Page, GPU and lane must be the same, and the fault must follow soon after the client's arrival. Two programs that
    fault at the same address, 0 for example, are not confused: a server or a queue would have the first one's fault.
    """
    assert isinstance(fault.what, UvmFault)
    if stay is None or when(fault) - stay.arrived > NEWCOMER:
        return None
    page = fault.what.address // _PAGE
    for before in unnoticed:
        same_gpu = before.gpu is None or fault.gpu is None or before.gpu == fault.gpu
        if page in before.pages and stay.lane in before.lanes and same_gpu and stay.arrived > before.incident.began:
            return before.incident
    return None


def ended_alone(
    group: EvidenceGroup, history: ClientHistory, was_hit: Callable[[ProcessKey | None], bool]
) -> tuple[ClientStay, ...]:
    """Return the clients that may have caused a memory fault that no server noticed; () if another process may have.

    Every client that was on the lane, or had been until just before, must have ended. The pid in the kernel's line must
    be a client's or a server's: for processes outside of MPS it is right. A client that was hit by an earlier fault is
    no cause of this one.
    """
    lines = [e for e in group.anchors if isinstance(e.what, Xid)]
    numbers = {e.what.number for e in lines if isinstance(e.what, Xid)}
    if _MMU_XID not in numbers or _SM_XID in numbers or _noticed(group):
        return ()
    if any(isinstance(e.what, Lost) for e in group.evidence):
        return ()
    pids = {e.what.pid for e in lines if isinstance(e.what, Xid) and e.source is Source.KERNEL_LOG}
    ends = {e.process for e in group.evidence if isinstance(e.what, ProcessEnded) and not was_hit(e.process)}
    sign = when(lines[0])
    there = tuple(
        stay for stay in history.all() if stay.arrived <= sign and (stay.ended is None or stay.ended >= sign - BEFORE)
    )
    lanes = {lane for pid in pids if pid is not None for lane in history.lanes_of_server(pid)}
    if len(lanes) == 1:
        # The driver names the lane's server: clients of other lanes are not involved.
        there = tuple(stay for stay in there if stay.lane in lanes)
    there = tuple({stay.process: stay for stay in there}.values())
    if any(stay.process not in ends for stay in there):
        return ()
    accounted = {*history.all_servers(), *(stay.process.pid for stay in there)}
    return there if pids and pids <= accounted else ()


def reason(there: tuple[ClientStay, ...], end: Evidence) -> str:
    """Return the reason for a verdict on the clients ``there``; ``end`` is the end of the first of them."""
    finding = "No client was left, the server took no notice, and no client's queue has a fatal fault"
    if len(there) == 1:
        return f"{finding}: the client ended {how(end)} with work in flight."
    return f"{finding}: it was work of one of the {len(there)} clients that ended about then."


def how(end: Evidence) -> str:
    """Return how a client ended, in words."""
    assert isinstance(end.what, ProcessEnded)
    if end.what.execed is not None:
        return f"by executing another program ({end.what.execed} until then)"
    words = f"by signal {end.what.signal}" if end.what.signal else f"with status {end.what.exit_code}"
    return words + (" (out of memory)" if end.what.oom_killed else "")


def _noticed(group: EvidenceGroup) -> bool:
    """Return whether a server logged the fault. Lines later than SERVER_LAG are about another fault."""
    return any(
        isinstance(e.what, ServerSays) and e.what.what in _NOTICES and when(e) <= group.began + SERVER_LAG
        for e in group.evidence
    )
