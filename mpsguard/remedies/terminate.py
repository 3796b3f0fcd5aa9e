"""The remedy `terminate`: end the culprit, and nobody else, in the clean order."""

import signal
from collections.abc import Callable
from typing import Final

from mpsguard.config import RemedyName
from mpsguard.linux.process import ProcessHandle
from mpsguard.model import ProcessKey
from mpsguard.remedies import termination
from mpsguard.remedies.remedy import Done, Failed, NotNeeded, Outcome, RemedyCase
from mpsguard.remedies.termination import Lane, Plan, Work

_SPARE: Final = 1.0


class Terminate:
    """In one domain."""

    name: Final[RemedyName] = "terminate"

    def __init__(self, lane_of: Callable[[ProcessKey], Lane], answer_within: float) -> None:
        """``lane_of`` tells the lane of a client; ``answer_within``: seconds its control daemon gets."""
        self._lane_of = lane_of
        self._answer_within = answer_within

    def within(self, case: RemedyCase) -> float:
        """See `Remedy`."""
        return self._answer_within + case.step.grace + termination.KILLED_WITHIN + _SPARE

    def would(self, case: RemedyCase) -> str:
        """See `Remedy`."""
        pid = case.culprit.pid if case.culprit else "nobody"
        return f"end the GPU work of process {pid}, then SIGTERM, then SIGKILL after {case.step.grace:g} s"

    async def apply(self, case: RemedyCase) -> Outcome:
        """See `Remedy`."""
        if case.culprit is None:
            return NotNeeded("no process is named")
        try:
            held = ProcessHandle.hold(case.culprit)
        except ProcessLookupError:
            return NotNeeded(f"process {case.culprit.pid} has ended")
        plan = Plan(self._answer_within, signal.SIGTERM, case.step.grace)
        with held as culprit:
            result = await termination.terminate(self._lane_of(case.culprit), culprit, plan)
        end = result.end
        if end.work in (Work.NONE, Work.GONE):
            return NotNeeded(f"process {result.pid}: {end.answer}")
        if end.in_flight():
            return Failed(
                f"process {result.pid} was not signalled, its GPU work may go on: {end.answer or 'no answer'}"
            )
        after = f" after {' and '.join(result.signals)}" if result.signals else ""
        if not result.ended:
            return Failed(f"the GPU work of process {result.pid} was ended; the process has not ended{after}")
        return Done(f"the GPU work of process {result.pid} was ended; the process has ended{after}")
