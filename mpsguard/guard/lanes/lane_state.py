"""The state of a lane as a pure function of the evidence."""

from collections.abc import Sequence
from typing import Final, TypedDict

from mpsguard.guard.lanes.service import NotServed
from mpsguard.guard.model import LaneState, Server

WORDS = {
    "ACTIVE": LaneState.ACTIVE,
    "INITIALIZING": LaneState.INITIALIZING,
    "FAULT": LaneState.FAULT,
}
_NAMED: Final = 4
"""Clients that a reason names at most."""

_GRAVEST_FIRST = (LaneState.FAULT, LaneState.UNKNOWN, LaneState.INITIALIZING)


def decide(servers: Sequence[Server]) -> tuple[LaneState, str]:
    """Return state and reason of a lane with a control daemon that lives and has answered.

    The gravest server decides. A lane without a server is ACTIVE: the control daemon starts one for the first client.
    """
    if not servers:
        return LaneState.ACTIVE, "the control daemon answers; no server yet"
    states = {server: WORDS.get(server.state, LaneState.UNKNOWN) for server in servers}
    for grave in _GRAVEST_FIRST:
        for server, state in states.items():
            if state is grave:
                return state, f"server {server.process.pid} says {server.state}"
    return LaneState.ACTIVE, f"server {', '.join(str(server.process.pid) for server in servers)} says ACTIVE"


def admits(state: LaneState) -> bool:
    """Whether a client may be handed to a lane in this state, rather than wait.

    A lane that does not answer, or fails, is no reason to wait: the client gets what it would get from the daemon
    itself, and shows whether the lane serves again.
    """
    return state in (LaneState.ACTIVE, LaneState.UNKNOWN, LaneState.FAILING)


class LaneJudgement(TypedDict):
    """What a lane's report says of its service."""

    state: LaneState
    reason: str
    doubt: str


def judged(
    said: LaneState, reason: str, found: NotServed | None, holding: Sequence[str], recovering: str = ""
) -> LaneJudgement:
    """Return state, reason and doubt of a lane.

    Args:
        said: the state that follows from the control daemon's answer.
        reason: the reason for it.
        found: what follows from what clients get.
        holding: the clients of the lane's server that have not ended, in words.
        recovering: why newcomers are to wait although the server says that it is well; "" if they are not.
    """
    if said is LaneState.FAULT:
        held = f"; not yet left by {', '.join(holding[:_NAMED])}" if holding else ""
        return LaneJudgement(state=said, reason=f"{reason}{held}", doubt="")
    if said is LaneState.ACTIVE and recovering:
        return LaneJudgement(state=LaneState.RECOVERING, reason=recovering, doubt="")
    if found is None:
        return LaneJudgement(state=said, reason=reason, doubt="")
    if found.proven:
        return LaneJudgement(state=LaneState.FAILING, reason=found.reason, doubt="")
    return LaneJudgement(state=said, reason=reason, doubt=found.reason)
