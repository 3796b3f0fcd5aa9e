"""Failover decisions: which lane is lost, and which standbys continue the sessions with writers on it. Pure.

The decision rests on the first sign of *where* a fault is, not on the verdict on its culprit, which is later and not
needed. The signs were measured on an H200 with driver 580.159.04 (`scripts/gpu-suite triage`, `scripts/gpu-suite
failover`):

* a fatal fault in a client's own UVM queue, 2 ms after the access: the client's lane;
* Xid 13 without a pid, the first sign of an SM fault, 5 to 40 ms after it, by the number of the GPU's clients
  (`failover --only first_word`): the lane with work on that GPU, if there is only one (a waiting standby has none). A
  program outside of MPS on the same GPU can cause it too; then the sessions fail over needlessly;
* an Xid with the pid of a server or client, a line of the server's own log, the server's end: that lane.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from mpsguard.guard import daemon_log
from mpsguard.guard.evidence import Evidence, LaneChanged, ServerSays, Source, UvmFault, Xid
from mpsguard.guard.model import LaneState
from mpsguard.linux.identity import ProcessKey
from mpsguard.vault.server.transitions import ready_standbys
from mpsguard.vault.wire.region import LeaseRole, SessionKey, SessionRecord

SIGNS: Final = (UvmFault, ServerSays, LaneChanged, Xid)
"""The kinds of observations that `lost_lane` uses."""

_FATAL_XIDS: Final = frozenset({13, 31, 43})
"""Xids of SM and memory faults: under MPS these faults end all clients of a server."""

_WITHOUT_PID: Final = 13
_LANE_ENDS: Final = frozenset({LaneState.FAULT.value, LaneState.DOWN.value})
_SERVER_ENDS: Final = frozenset({daemon_log.BEGINS, daemon_log.EXITED})


class LaneView(msgspec.Struct, frozen=True):
    """The facts about a lane that failover decisions need."""

    name: str
    servers: frozenset[int]
    """Pids of its servers."""
    clients: frozenset[ProcessKey]
    gpus: frozenset[str] | None
    """PCI addresses as in `Evidence.gpu`; None: any."""
    astride: frozenset[ProcessKey] = frozenset()
    """Clients among them that have a driver on another lane, too: a fault of theirs may be there."""

    @property
    def on_this_alone(self) -> frozenset[ProcessKey]:
        """Clients of which a fault is one of this lane."""
        return self.clients - self.astride


class SessionFailover(msgspec.Struct, frozen=True):
    """The failover of one session to a standby on another lane."""

    session: SessionKey
    generation: int
    """The generation that ends."""
    writer: ProcessKey
    candidate: ProcessKey
    """The standby to promote."""
    token: int
    """The standby's lease."""


def lost_lane(
    evidence: Evidence,
    lanes: Sequence[LaneView],
    waiting: frozenset[ProcessKey],
    *,
    contained: bool = False,
    alone: bool = False,
) -> str | None:
    """Return the lane that is lost according to an observation; None if no lane is, or it is not known which.

    Args:
        evidence: the observation.
        lanes: all lanes.
        waiting: processes that are known to have no work on a GPU.
        contained: whether the patched nvidia-uvm contains memory faults: then an entry in a client's queue does not
            mean the loss of its lane.
        alone: whether a client repeats lost work outside of MPS: a line without a pid may be about that.
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
    if what.number != _WITHOUT_PID or evidence.source is not Source.KERNEL_LOG or alone:
        return None
    at_work = [lane.name for lane in lanes if _on(lane, evidence.gpu) and lane.clients - waiting]
    return at_work[0] if len(at_work) == 1 else None


def session_failovers(
    lane: str, sessions: Iterable[SessionRecord], lane_of: Callable[[ProcessKey], str | None]
) -> tuple[tuple[SessionFailover, ...], tuple[SessionKey, ...]]:
    """Return the failovers of the sessions with a writer on ``lane``, and the sessions without a standby elsewhere.

    Args:
        lane: the lane that is lost.
        sessions: all sessions.
        lane_of: returns the lane of a process, or None if it is no client.
    """
    failovers, left = [], []
    for session in sessions:
        writer = session.writer
        if writer is None or lane_of(writer.process) != lane:
            continue
        standbys = ready_standbys(session)
        candidate = next((lease for lease in standbys if lane_of(lease.process) != lane), None)
        if candidate is None:
            left.append(session.key)
        else:
            failovers.append(
                SessionFailover(session.key, session.generation, writer.process, candidate.process, candidate.token)
            )
    return tuple(failovers), tuple(left)


def stranded(
    lane: str, sessions: Iterable[SessionRecord], lane_of: Callable[[ProcessKey], str | None]
) -> tuple[tuple[SessionKey, int], ...]:
    """Return session and token of each standby on ``lane``: it waits, and would not notice that its context is lost."""
    return tuple(
        (session.key, lease.token)
        for session in sessions
        for lease in session.readers
        if lease.role is LeaseRole.STANDBY and lane_of(lease.process) == lane
    )


def waiting(sessions: Iterable[SessionRecord]) -> frozenset[ProcessKey]:
    """Return the processes that have declared themselves ready standbys, which only wait."""
    return frozenset(lease.process for session in sessions for lease in ready_standbys(session))


def _lane_of(process: ProcessKey | None, lanes: Sequence[LaneView]) -> str | None:
    return next((lane.name for lane in lanes if process in lane.on_this_alone), None)


def _lane_of_pid(pid: int, lanes: Sequence[LaneView]) -> str | None:
    return next(
        (lane.name for lane in lanes if pid in lane.servers or any(client.pid == pid for client in lane.on_this_alone)),
        None,
    )


def _on(lane: LaneView, gpu: str | None) -> bool:
    return lane.gpus is None or gpu is None or gpu in lane.gpus
