"""The remedy `terminate`: ends the culprit, without harm to the other clients of its lane."""

import signal
from collections.abc import Callable, Sequence
from typing import Final

from mpsguard.guard.config import RemedyName
from mpsguard.guard.model import KILLED_WITHIN, Work
from mpsguard.guard.remedies import termination
from mpsguard.guard.remedies.remedy import Applied, Failed, NotNeeded, Outcome, RemedyCase
from mpsguard.guard.remedies.termination import TerminationLane, TerminationPlan
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes.process import ProcessHandle

_SPARE: Final = 1.0


class Terminate:
    """The remedy `terminate` of one domain."""

    name: Final[RemedyName] = "terminate"

    def __init__(
        self,
        lanes_of: Callable[[ProcessKey], Sequence[TerminationLane]],
        held: Callable[[ProcessKey], ProcessHandle | None],
        answer_within: float,
    ) -> None:
        """Create it.

        Args:
            lanes_of: returns the lanes on which a client may have work.
            held: returns a handle of a client, which the caller closes; None if it has ended.
            answer_within: seconds for the lane's control daemon to answer.
        """
        self._lanes_of = lanes_of
        self._held = held
        self._answer_within = answer_within

    def within(self, case: RemedyCase) -> float:
        """See `Remedy`."""
        return self._answer_within + case.step.grace + KILLED_WITHIN + _SPARE

    def would(self, case: RemedyCase) -> str:
        """See `Remedy`."""
        process = f"process {case.culprit.pid}" if case.culprit else "no process"
        return f"end the GPU work of {process}, then SIGTERM, then SIGKILL after {case.step.grace:g} s"

    async def apply(self, case: RemedyCase) -> Outcome:
        """See `Remedy`."""
        if case.culprit is None:
            return NotNeeded("no process is named")
        held = self._held(case.culprit)
        if held is None:
            return NotNeeded(f"process {case.culprit.pid} has ended")
        plan = TerminationPlan(self._answer_within, signal.SIGTERM, case.step.grace)
        with held as culprit:
            result = await termination.terminate(self._lanes_of(case.culprit), culprit, plan)
        end = result.end
        if end.work in (Work.NONE, Work.GONE):
            return NotNeeded(f"process {result.pid}: {end.answer}")
        if end.work is Work.STOPPED and result.ended:
            return Applied(
                f"process {result.pid} was stopped, and has been killed; its lifeline keeps what its work needs"
            )
        if end.work.in_flight:
            return Failed(
                f"process {result.pid} was not signalled, its GPU work may go on: {end.answer or 'no answer'}"
            )
        after = f" after {' and '.join(result.signals)}" if result.signals else ""
        if not result.ended:
            return Failed(f"the GPU work of process {result.pid} was ended; the process has not ended{after}")
        return Applied(f"the GPU work of process {result.pid} was ended; the process has ended{after}")
