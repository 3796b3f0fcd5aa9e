"""The state of a lane as a pure function of the evidence."""

from collections.abc import Sequence

from mpsguard.model import LaneState, Server

_WORDS = {
    "ACTIVE": LaneState.ACTIVE,
    "INITIALIZING": LaneState.INITIALIZING,
    "FAULT": LaneState.FAULT,
}
_GRAVEST_FIRST = (LaneState.FAULT, LaneState.UNKNOWN, LaneState.INITIALIZING)


def decide(servers: Sequence[Server]) -> tuple[LaneState, str]:
    """Return state and reason of a lane with a control daemon that lives and has answered.

    The gravest server decides. A lane without a server is ACTIVE: the control daemon starts one for the first client.
    """
    if not servers:
        return LaneState.ACTIVE, "the control daemon answers; no server yet"
    states = {server: _WORDS.get(server.state, LaneState.UNKNOWN) for server in servers}
    for grave in _GRAVEST_FIRST:
        for server, state in states.items():
            if state is grave:
                return state, f"server {server.process.pid} says {server.state}"
    return LaneState.ACTIVE, f"server {', '.join(str(server.process.pid) for server in servers)} says ACTIVE"


def admits(state: LaneState) -> bool:
    """Whether a client may be handed to a lane in this state, rather than wait.

    A lane that does not answer is no reason to wait: the client gets what it would get from the daemon itself.
    """
    return state in (LaneState.ACTIVE, LaneState.UNKNOWN)
