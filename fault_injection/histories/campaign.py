"""Runs histories past triage and policy, and holds what they say against the truth."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import inf
from typing import Final

import msgspec

from fault_injection.histories.world import World, history, line
from mpsguard.guard.config import Remedies, Step
from mpsguard.guard.incident import Confidence, Ground, Incident
from mpsguard.guard.remedies.policy import Standing, Verdict, decide
from mpsguard.guard.triage.rolling import RollingTriage

_LATER: Final = (0.3, 0.6, 5.0)
"""Seconds after the last observation at which it is judged once more."""
_AT_ONCE: Final = 0.002
"""Seconds within which evidence is judged together."""
_CHUNK: Final = 200
"""Histories given to a worker at a time."""


def _enforced(at_least: str) -> Remedies:
    step = msgspec.convert({"remedy": "terminate", "mode": "enforce", "at_least": at_least}, Step)
    return Remedies(
        mmu=(step,), sm=(step,), mmu_or_sm=(step,), engine=(step,), process=(step,), lane=(step,), device=(step,)
    )


POLICIES: Final = {at_least: _enforced(at_least) for at_least in ("proven", "likely")}
"""Those that docs/guides/policy.md calls safe."""


class Outcome(msgspec.Struct, frozen=True):
    """What came of one history."""

    index: int
    wrong: tuple[str, ...]
    """Innocents that were proven guilty or ended, a line each."""
    named: dict[str, int]
    """Culprits named, by their grounds."""
    history: tuple[str, ...] = ()
    """What happened and what was seen, of a history that went wrong."""


def run(seed: int, indices: Sequence[int], jobs: int) -> Iterator[Outcome]:
    """The outcomes, in the order in which they come."""
    chunks = [indices[first : first + _CHUNK] for first in range(0, len(indices), _CHUNK)]
    if jobs == 1:
        for chunk in chunks:
            yield from _several(seed, chunk)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for outcomes in pool.map(_several, [seed] * len(chunks), chunks):
            yield from outcomes


def _several(seed: int, indices: Iterable[int]) -> list[Outcome]:
    return [one(seed, index) for index in indices]


def one(seed: int, index: int) -> Outcome:
    """One history, judged as it comes."""
    world = history(random.Random(f"{seed}:{index}"))
    rolling = RollingTriage()
    wrong: list[str] = []
    named: Counter[str] = Counter()
    arrivals = world.arrivals()
    waits = False
    following = [*(at for at, _ in arrivals[1:]), inf]
    for (at, evidence), next_at in zip(arrivals, following, strict=False):
        waits |= rolling.add(evidence)
        # As the guard does, which judges together what came at once.
        if waits and next_at - at > _AT_ONCE:
            _check(world, rolling, at, wrong, named)
            waits = False
    last = arrivals[-1][0] if arrivals else 0.0
    for later in _LATER:
        _check(world, rolling, last + later, wrong, named)
    told = (*sorted(world.told), *(line(at, evidence) for at, evidence in arrivals)) if wrong else ()
    return Outcome(index, tuple(wrong), dict(named), told)


def _check(world: World, rolling: RollingTriage, now: float, wrong: list[str], named: Counter[str]) -> None:
    for change in rolling.judge(now)[0]:
        incident = change.incident
        culprit = incident.culprit.process if incident.culprit is not None else None
        if culprit is None or not change.verdict:
            continue
        named[str(incident.ground)] += 1
        innocent = not _did_it(world, incident)
        if innocent and incident.confidence is Confidence.PROVEN:
            wrong.append(f"{now:.3f}: {culprit.pid}.{culprit.start_ticks} is proven: {incident.reason}")
        lives = world.ended.get(culprit, now + 1) > now
        for name, remedies in POLICIES.items():
            decisions = decide(incident, remedies, Standing.CLIENT if lives else Standing.ENDED)
            if innocent and any(decision.verdict is Verdict.RUN for decision in decisions):
                wrong.append(f"{now:.3f}: {culprit.pid}.{culprit.start_ticks} is ended by {name}: {incident.reason}")


def _did_it(world: World, incident: Incident) -> bool:
    """Whether the culprit did something wrong by then; its own end is told of as such, and is no accusation."""
    assert incident.culprit is not None
    assert incident.culprit.process is not None
    if incident.ground is Ground.OWN_END:
        return incident.culprit.process in world.ended
    return any(at <= incident.ended for at in world.guilty.get(incident.culprit.process, ()))
