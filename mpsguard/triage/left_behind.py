"""Rules for work that outlives its client when no other client is there.

With a living client, a server tells in its log of every memory fault. A client that ends with work in flight and was
alone on the lane gets none of that: the server takes no notice and does not clean up. Seen on an H200 (580.159.04): the
kernel log has one Xid 31 that names the server, 0.05 s before the client is seen to have ended; and 0.9 s later the
same work faults again, at the same address, in the address space and in the UVM queue of a client that came since and
had run nothing yet.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from mpsguard.evidence import Evidence, Lost, ProcessEnded, ServerSays, UvmFault, Xid
from mpsguard.incident import Confidence, Incident
from mpsguard.model import ProcessKey
from mpsguard.triage.episode import BEFORE, Episode
from mpsguard.triage.population import Member, Population, when

SERVER_LAG: Final = 0.4
"""Seconds within which a server has spoken of a fault if it ever will (0.13 s seen)."""

_MMU_XID: Final = 31
_SM_XID: Final = 13
_NOTICES: Final = frozenset({"fault_begins", "culprit", "teardown", "sticky", "server_exited"})
_FAULTED_AT: Final = re.compile(r"faulted @ 0x([0-9a-f]{1,8})_([0-9a-f]{8})\b", re.IGNORECASE)
_PAGE: Final = 4096


def servers(evidence: Iterable[Evidence]) -> frozenset[int]:
    """The pids that the evidence knows to be servers'."""
    found: set[int] = set()
    for each in evidence:
        if isinstance(each.what, ServerSays):
            found.add(each.what.server)
        elif isinstance(each.what, ProcessEnded):
            found.update(each.what.servers)
    return frozenset(found)


def unnoticed_pages(episode: Episode) -> frozenset[int]:
    """The pages at which the kernel log says that something faulted, if no server and no client's queue tells of it."""
    if _noticed(episode) or any(isinstance(e.what, UvmFault) and e.what.fatal for e in episode.evidence):
        return frozenset()
    texts = (e.what.text for e in episode.anchors if isinstance(e.what, Xid) and e.what.number == _MMU_XID)
    return frozenset(int(match[1] + match[2], 16) // _PAGE for match in map(_FAULTED_AT.search, texts) if match)


def came_back(fault: Evidence, member: Member | None, unnoticed: Mapping[int, Incident]) -> Incident | None:
    """The incident whose work a fatal fault in a client's queue is, if it is not the client's own.

    ``unnoticed`` has what was made of each of the `unnoticed_pages`. Two programs that fault alike, at address 0 say,
    are not taken for this: of the first one's fault its server or its queue would have told.
    """
    assert isinstance(fault.what, UvmFault)
    before = unnoticed.get(fault.what.address // _PAGE)
    return before if before is not None and member is not None and member.came > before.began else None


def ended_alone(
    episode: Episode, population: Population, known_servers: frozenset[int], hit_before: frozenset[ProcessKey | None]
) -> tuple[Member, ...]:
    """The clients one of whose work a memory fault is that nobody noticed; () if it may have been somebody else's.

    Every client that was there, or had been until just before, must have ended. The pid of the kernel's line must be a
    client's or a server's: it is right for strangers. A client that an earlier fault had hit is no cause of this one.
    """
    numbers = {e.what.number for e in episode.anchors if isinstance(e.what, Xid)}
    if _MMU_XID not in numbers or _SM_XID in numbers or _noticed(episode):
        return ()
    ends = {e.process for e in episode.evidence if isinstance(e.what, ProcessEnded)} - hit_before
    sign = next(when(e) for e in episode.anchors if isinstance(e.what, Xid))
    there = tuple(
        member
        for member in population.all()
        if member.came <= sign and (member.ended is None or member.ended >= sign - BEFORE)
    )
    if any(member.process not in ends for member in there):
        return ()
    accounted = {None, *known_servers, *(member.process.pid for member in there)}
    if any(isinstance(e.what, Xid) and e.what.pid not in accounted for e in episode.anchors):
        return ()
    if any(isinstance(e.what, Lost) for e in episode.evidence):
        return ()
    return there


def reason(there: tuple[Member, ...], end: Evidence) -> tuple[Confidence, str]:
    """How sure it is who it was, and why; ``end`` is that of the first of them."""
    told = "No client was left, the server took no notice, and no client's queue has a fatal fault"
    if len(there) == 1:
        return Confidence.LIKELY, f"{told}: the client ended {how(end)} with work in flight."
    return Confidence.UNKNOWN, f"{told}: it was work of one of the {len(there)} clients that ended about then."


def how(end: Evidence) -> str:
    """How a client ended, in words."""
    assert isinstance(end.what, ProcessEnded)
    if end.what.execed is not None:
        return f"by executing another program ({end.what.execed} until then)"
    words = f"by signal {end.what.signal}" if end.what.signal else f"with status {end.what.exit_code}"
    return words + (" (out of memory)" if end.what.oom_killed else "")


def _noticed(episode: Episode) -> bool:
    """Whether a server tells of it. What it says later than SERVER_LAG is about another fault."""
    return any(
        isinstance(e.what, ServerSays) and e.what.what in _NOTICES and when(e) <= episode.began + SERVER_LAG
        for e in episode.evidence
    )
