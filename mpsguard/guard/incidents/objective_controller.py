"""Controller of an objective: from a measured p99 to the share of the SMs with which it would hold. Pure.

A share is lowered at once when the target is missed, by more the further off it is, and raised in small steps only
after several calm windows. The share at which the target was missed last is remembered, and the share is not raised up
to it again until that is tried once more, each time after twice as many windows. So with an unchanged load the share
comes to rest, whatever the response of p99 to it is, as long as p99 does not fall when the share rises.

A decision needs the share to be in force: as long as a client of the batch class still runs on more, a missed target
says nothing about the share that was decided last. So a controller of which nothing is applied stays one step ahead of
what there is.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from mpsguard.guard.config import Objective

_FAR: Final = ((2.0, 4), (1.25, 2))
"""Ratio of p99 to the target from which a step down is that many steps. Beside training, p99 fell to a quarter or less
with the first 20 % of the SMs taken away (H200), and hardly with 18 % (H100; `classes --only beside_training`): so
a far miss takes four steps of 5 % at once."""
_FINEST: Final = 2.0
"""Least change of a share upwards in percent: an SM comes in pairs, and a pair is 1.5 % of an H100."""
FIRST_WAIT: Final = 60
"""Windows after which a share that missed the target is tried again for the first time: 10 minutes of 10 s."""
LONGEST_WAIT: Final = 1920
"""The most windows between two such trials: 5 hours of 10 s. One trial costs one window with a missed target."""


@dataclass(frozen=True)
class Measurement:
    """One window."""

    requests: int
    """Of the session that decides."""
    p99: float | None
    """In seconds; None without requests."""
    in_force: float | None
    """Largest share of a client of the batch class that lives, in percent; None if there is none."""


@dataclass(frozen=True)
class ControllerState:
    """What a controller knows; `initial` makes the first."""

    share: float
    """Percent of the SMs for the batch class with which the target would hold, as far as is known."""
    calm: int = 0
    """Calm windows in a row."""
    missed_at: float | None = None
    """The least share with which the target was missed, unless that is to be tried again."""
    quiet: int = 0
    """Windows since then."""
    wait: int = FIRST_WAIT
    """Windows after which `missed_at` is tried again."""


def initial(objective: Objective, class_share: float | None) -> ControllerState:
    """Return the state to begin with: all that the batch class may have, of which ``class_share`` is its own limit."""
    return ControllerState(_most(objective, class_share))


def decide(
    objective: Objective, class_share: float | None, state: ControllerState, measured: Measurement
) -> ControllerState:
    """Return the state after a window; `ControllerState.share` is the decision.

    Nothing changes with too few requests, or without clients of the batch class, which then is not what slows them.
    """
    if measured.p99 is None or measured.requests < objective.least_requests or measured.in_force is None:
        return state
    ratio = measured.p99 * 1e3 / objective.p99_ms
    if ratio > 1:
        return _missed(objective, state, ratio, measured.in_force)
    state = replace(state, calm=state.calm + 1 if ratio < objective.calm_below else 0, quiet=state.quiet + 1)
    if state.calm < objective.calm_windows or measured.in_force < state.share:
        return state
    if state.missed_at is not None and state.quiet >= state.wait:
        state = replace(state, missed_at=None, quiet=0, wait=min(2 * state.wait, LONGEST_WAIT))
    return _raised(objective, class_share, state)


def _missed(objective: Objective, state: ControllerState, ratio: float, in_force: float) -> ControllerState:
    state = replace(state, calm=0)
    if in_force > state.share:
        return state
    steps = next((steps for least, steps in _FAR if ratio >= least), 1)
    lower = max(in_force - steps * objective.step, min(objective.least_share, state.share))
    return replace(state, share=lower, missed_at=in_force, quiet=0)


def _raised(objective: Objective, class_share: float | None, state: ControllerState) -> ControllerState:
    higher = min(state.share + objective.step, _most(objective, class_share))
    if state.missed_at is not None:
        # Between what holds and what does not: the way there becomes half as long with each step.
        higher = min(higher, math.floor((state.share + state.missed_at) / 2))
        if higher - state.share < _FINEST:
            return state
    return replace(state, share=higher, calm=0) if higher > state.share else state


def _most(objective: Objective, class_share: float | None) -> float:
    return objective.most_share if class_share is None else min(objective.most_share, class_share)
