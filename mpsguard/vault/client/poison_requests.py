"""Tracks requests that crash the process computing them; after a few deaths at one point a request is skipped.

A program keeps a tracker in its forward state. Before each step it publishes the requests in it; after a failover it
reports them:

    tracker = tracker.died({request.id: request.progress for request in state.in_step})
    attempt = tracker.next_step(waiting)  # attempt.skip: refuse these; attempt.run: work on these, and on no others
    ...
    tracker = tracker.progressed(request.id, request.progress)  # after a step
    tracker = tracker.finished(request.id)  # when it is complete, or was skipped

Every request of a step in which a process died is suspect, and runs alone until it has come further than it had then:
one step for each, after which all run together again. So an innocent request is delayed by one step, and a poisonous
one is alone when it kills a process again. The program defines progress (tokens, for instance); it must not decrease.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

MOST_DEATHS: Final = 3
"""Deaths at the same point after which a request is skipped; the default of `PoisonRequestTracker.most_deaths`."""


class Suspicion(msgspec.Struct, frozen=True):
    """The deaths counted against a request."""

    deaths: int
    """Consecutive deaths of processes in steps with this request, without progress in between."""
    progress: int
    """Its progress at that time."""


class Attempt(msgspec.Struct, frozen=True):
    """The next step; requests in the order in which they were given."""

    run: tuple[int, ...]
    """Requests to compute in one step."""
    skip: tuple[int, ...]
    """Requests to refuse."""


class PoisonRequestTracker(msgspec.Struct, frozen=True):
    """Suspicions by request: a small frozen value that msgspec encodes."""

    suspicions: dict[int, Suspicion] = {}
    most_deaths: int = MOST_DEATHS

    def died(self, in_step: Mapping[int, int]) -> "PoisonRequestTracker":
        """Record that a process died in a step with these requests.

        Args:
            in_step: progress by request id; empty if the process was idle.
        """
        after = dict(self.suspicions)
        for request, progress in in_step.items():
            before = after.get(request)
            again = before is not None and progress <= before.progress
            after[request] = Suspicion(before.deaths + 1 if before is not None and again else 1, progress)
        return PoisonRequestTracker(after, self.most_deaths)

    def progressed(self, request: int, progress: int) -> "PoisonRequestTracker":
        """Record a request's progress; it is no longer suspect if this is further than before."""
        suspicion = self.suspicions.get(request)
        return self if suspicion is None or progress <= suspicion.progress else self.finished(request)

    def finished(self, request: int) -> "PoisonRequestTracker":
        """Forget a request that is complete or was skipped."""
        if request not in self.suspicions:
            return self
        return PoisonRequestTracker(
            {each: held for each, held in self.suspicions.items() if each != request}, self.most_deaths
        )

    def next_step(self, waiting: Iterable[int]) -> Attempt:
        """Return the next step of the ``waiting`` requests: the first suspect alone, or all if none is suspect."""
        named = tuple(dict.fromkeys(waiting))
        skip = tuple(each for each in named if self.deaths(each) >= self.most_deaths)
        left = tuple(each for each in named if each not in skip)
        alone = next((each for each in left if self.deaths(each)), None)
        return Attempt(left if alone is None else (alone,), skip)

    def deaths(self, request: int) -> int:
        """Return the number of deaths counted against a request."""
        suspicion = self.suspicions.get(request)
        return 0 if suspicion is None else suspicion.deaths
