"""The judgement on a lane: from its daemon's word, what clients get, and what it has to recover from."""

from collections.abc import Callable

from mpsguard.guard.lanes import lane_state
from mpsguard.guard.lanes.lane_spec import LaneSpec
from mpsguard.guard.lanes.lane_state import LaneJudgement
from mpsguard.guard.lanes.recovery import Recovery
from mpsguard.guard.lanes.service_watch import ServiceWatch
from mpsguard.guard.model import LaneState, Notify, Server


class LaneJudge:
    """Owns what is known of one lane's service and recovery."""

    def __init__(self, spec: LaneSpec, notice: Notify, prompt: Callable[[], None], changed: Callable[[], None]) -> None:
        """Create it.

        Args:
            spec: the lane's.
            notice: takes events.
            prompt: has the control daemon asked.
            changed: called when the lane is to be judged anew.
        """
        self.service = ServiceWatch(spec.log_directory, notice, prompt, multiuser=spec.multiuser)
        self.recovery = Recovery(changed, self.service.believes_logs)

    def begin(self, *, adopted: bool) -> None:
        """Forget the control daemon before this one, which was found (``adopted``) or started."""
        self.service.begin(adopted=adopted)
        self.recovery.begin()

    def judge(self, said: LaneState, reason: str, servers: tuple[Server, ...]) -> LaneJudgement:
        """Return state, reason and doubt of the lane, given what its control daemon said last."""
        if not servers:
            self.recovery.begin()
        elif said is LaneState.FAULT:
            self.recovery.server_says_fault()
        recovering = self.recovery.why()
        self.service.look(servers, excused=bool(recovering))
        return lane_state.judged(said, reason, self.service.verdict(), self.service.holding(), recovering)
