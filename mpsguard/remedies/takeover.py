"""Takeover: which lane will not live, and who goes on with the sessions that are written from there. Pure.

The sign that is acted on is the first one that tells *where* a fault is, not the verdict on whose it was: that comes
later and changes nothing here. What each sign is worth was measured on an H200 with driver 580.159.04
(`scripts/gpu-suite triage`, `scripts/gpu-suite failover`):

* a fatal fault in a client's own UVM queue, 2 ms after the access: its lane;
* Xid 13 without a pid, the first sign of an SM fault, some 10 ms after it: the lane that has work on that GPU, if there
  is only one (a standby that waits has none). A program outside of MPS on the same GPU can fault like that, too; then
  the work goes on at the standby although it need not;
* an Xid with the pid of a server or client, a line of the server's own log, the server's end: that lane.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from mpsguard import daemon_log
from mpsguard.evidence import Evidence, LaneChanged, ServerSays, Source, UvmFault, Xid
from mpsguard.model import LaneState, ProcessKey
from mpsguard.vault.region import Role, Session, SessionKey
from mpsguard.vault.transitions import ready_standbys

SIGNS: Final = (UvmFault, ServerSays, LaneChanged, Xid)
"""The only observations that `struck` looks at."""

_FATAL_XIDS: Final = frozenset({13, 31, 43})
"""Of an SM or memory fault: under MPS they end all clients of a server."""

_WITHOUT_PID: Final = 13
_LANE_ENDS: Final = frozenset({LaneState.FAULT.value, LaneState.DOWN.value})
_SERVER_ENDS: Final = frozenset({daemon_log.BEGINS, daemon_log.EXITED})


class LaneView(msgspec.Struct, frozen=True):
    """A lane as takeover sees it."""

    name: str
    servers: frozenset[int]
    """Pids."""
    clients: frozenset[ProcessKey]
    gpus: frozenset[str] | None
    """PCI addresses as in `Evidence.gpu`; None: any."""


class Takeover(msgspec.Struct, frozen=True):
    """One session that goes on elsewhere."""

    session: SessionKey
    generation: int
    """The one that ends."""
    writer: ProcessKey
    heir: ProcessKey
    token: int
    """The heir's lease."""


def struck(
    evidence: Evidence, lanes: Sequence[LaneView], waiting: frozenset[ProcessKey], *, contained: bool = False
) -> str | None:
    """The lane that this observation says will not live; None if it says no such thing, or not which.

    ``waiting``: processes that are known to have no work on a GPU. ``contained``: the patched nvidia-uvm keeps memory
    faults with their client, so that an entry in its queue is no sign of the lane's end.
    """
    what = evidence.what
    if not isinstance(what, SIGNS):
        return None
    if isinstance(what, UvmFault):
        return _lane_of(evidence.process, lanes) if what.fatal and not contained else None
    if isinstance(what, ServerSays):
        return _lane_of_pid(what.server, lanes) if what.what in _SERVER_ENDS else None
    if isinstance(what, LaneChanged):
        return what.lane if what.state in _LANE_ENDS else None
    if what.number not in _FATAL_XIDS:
        return None
    if what.pid is not None:
        return _lane_of_pid(what.pid, lanes)
    if what.number != _WITHOUT_PID or evidence.source is not Source.KERNEL_LOG:
        return None
    at_work = [lane.name for lane in lanes if _on(lane, evidence.gpu) and lane.clients - waiting]
    return at_work[0] if len(at_work) == 1 else None


def takeovers(
    lane: str, sessions: Iterable[Session], lane_of: Callable[[ProcessKey], str | None]
) -> tuple[tuple[Takeover, ...], tuple[SessionKey, ...]]:
    """Of the sessions whose writer is on ``lane``: those that have an heir elsewhere, and those that have none.

    ``lane_of``: None for a process that is no client of any lane.
    """
    taken, left = [], []
    for session in sessions:
        writer = session.writer
        if writer is None or lane_of(writer.process) != lane:
            continue
        standbys = ready_standbys(session)
        heir = next((lease for lease in standbys if lane_of(lease.process) != lane), None)
        if heir is None:
            left.append(session.key)
        else:
            taken.append(Takeover(session.key, session.generation, writer.process, heir.process, heir.token))
    return tuple(taken), tuple(left)


def stranded(
    lane: str, sessions: Iterable[Session], lane_of: Callable[[ProcessKey], str | None]
) -> tuple[tuple[SessionKey, int], ...]:
    """The standbys on ``lane``, by session and token: they wait, and would not find out that their context is dead."""
    return tuple(
        (session.key, lease.token)
        for session in sessions
        for lease in session.readers
        if lease.role is Role.STANDBY and lane_of(lease.process) == lane
    )


def waiting(sessions: Iterable[Session]) -> frozenset[ProcessKey]:
    """The processes that have said that they only wait."""
    return frozenset(lease.process for session in sessions for lease in ready_standbys(session))


def _lane_of(process: ProcessKey | None, lanes: Sequence[LaneView]) -> str | None:
    return next((lane.name for lane in lanes if process in lane.clients), None)


def _lane_of_pid(pid: int, lanes: Sequence[LaneView]) -> str | None:
    return next(
        (lane.name for lane in lanes if pid in lane.servers or any(client.pid == pid for client in lane.clients)),
        None,
    )


def _on(lane: LaneView, gpu: str | None) -> bool:
    return lane.gpus is None or gpu is None or gpu in lane.gpus
