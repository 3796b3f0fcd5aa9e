"""Requests that end whoever works on them: after a few deaths at the same point one is skipped, and told about.

A program keeps a book in its forward state. Before each step it publishes who is in it; after a takeover it says so:

    book = book.died({request.id: request.progress for request in state.in_step})
    turn = book.turn(waiting)  # turn.skip: give up and tell; turn.run: work on these, and on no other
    ...
    book = book.went_on(request.id, request.progress)  # after a step
    book = book.over(request.id)  # when it is finished, or was skipped

Whoever was in a step that a process died in is suspect, and is run alone until it has come further than it had then:
one step for each, after which all go on together. So an innocent request loses a step, and a guilty one is alone when
it does it again. Progress is what the program counts, tokens, say; it must not fall.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

MOST_DEATHS: Final = 3
"""Deaths at the same point after which a request is skipped, unless the program wants another number."""


class Suspicion(msgspec.Struct, frozen=True):
    """What is held against a request."""

    deaths: int
    """Processes that have died in steps that it was in, one after the other, without its getting any further."""
    progress: int
    """How far it had come."""


class Attempt(msgspec.Struct, frozen=True):
    """What is to be done next; both in the order in which they were named."""

    run: tuple[int, ...]
    """Requests to work on in one step."""
    skip: tuple[int, ...]
    """Requests not to be worked on any more."""


class PoisonRequestTracker(msgspec.Struct, frozen=True):
    """Suspicions by request. Small, frozen, and encoded by msgspec as it is."""

    suspicions: dict[int, Suspicion] = {}
    most_deaths: int = MOST_DEATHS

    def died(self, in_step: Mapping[int, int]) -> "PoisonRequestTracker":
        """A process died while these requests (by id, with their progress) were in its step; nobody, if it was idle."""
        after = dict(self.suspicions)
        for request, progress in in_step.items():
            before = after.get(request)
            again = before is not None and progress <= before.progress
            after[request] = Suspicion(before.deaths + 1 if before is not None and again else 1, progress)
        return PoisonRequestTracker(after, self.most_deaths)

    def went_on(self, request: int, progress: int) -> "PoisonRequestTracker":
        """A request has come so far; if that is further than when it was suspected, it is not any more."""
        suspicion = self.suspicions.get(request)
        return self if suspicion is None or progress <= suspicion.progress else self.over(request)

    def over(self, request: int) -> "PoisonRequestTracker":
        """A request is finished, or was given up: nothing is known of it any more."""
        if request not in self.suspicions:
            return self
        return PoisonRequestTracker(
            {each: held for each, held in self.suspicions.items() if each != request}, self.most_deaths
        )

    def turn(self, waiting: Iterable[int]) -> Attempt:
        """Who is next of those who wait: one suspect alone, the first of them, or all if there is none."""
        named = tuple(dict.fromkeys(waiting))
        skip = tuple(each for each in named if self.deaths(each) >= self.most_deaths)
        left = tuple(each for each in named if each not in skip)
        alone = next((each for each in left if self.deaths(each)), None)
        return Attempt(left if alone is None else (alone,), skip)

    def deaths(self, request: int) -> int:
        """Held against a request."""
        suspicion = self.suspicions.get(request)
        return 0 if suspicion is None else suspicion.deaths
