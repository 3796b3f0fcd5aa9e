"""What a client's end does to the others, and to those that come in the second after it.

Two neighbours compute and learn of the fault at once. The third holds its context and computes nothing: it learns with
its next call. An MPS server makes itself a new context once the old clients are gone, and refuses new ones until then;
so the third one keeps this state open for as long as the tour needs to look at it.
"""

from collections.abc import Callable
from typing import Final

from examples.demo.actor import LIVES, Actor
from examples.demo.fact import Cell, Fact, fate, tally
from examples.demo.stage import GuardedPlace, Place, StockPlace
from tests.gpu.core.events import MPS_SERVER_NOT_READY
from tests.gpu.core.programs import Work

_BUSY: Final = ("neighbour 1", "neighbour 2")
_IDLE: Final = "neighbour 3"
_LATE: Final = 3
_SERVED: Final = "served"
_REFUSED: Final = f"refused, error {MPS_SERVER_NOT_READY}"

Strike = Callable[[Place], None]
"""Starts the culprit and lets it do wrong; returns when it has."""


def stock(place: StockPlace, strike: Strike) -> Cell:
    """The late clients meet a server that refuses them."""
    fates, idle = _strike_among_neighbours(place, strike)
    late = [fate(actor.finish()) for actor in _start_late(place)]
    fates.append(_let_go(idle))
    refused = late.count(_REFUSED)
    return [
        _neighbours(fates, ""),
        Fact(
            f"late: {tally(late)}",
            harm=late.count(_SERVED) < _LATE,
            as_expected=refused > 0,
            expected=_REFUSED,
        ),
    ]


def isolated(place: GuardedPlace, strike: Strike) -> Cell:
    """The neighbours notice nothing, and the late clients are served at once."""
    fates, idle = _strike_among_neighbours(place, strike)
    ends = [fate(actor.finish()) for actor in _start_late(place)]
    idle.go()
    fates.append(idle.stricken())
    served = ends.count(_SERVED)
    return [
        Fact(
            f"neighbours: {tally(fates)}",
            harm=any(each != LIVES for each in fates),
            as_expected=all(each == LIVES for each in fates),
            expected="all live",
        ),
        Fact(f"late: {tally(ends)}", harm=served < _LATE, as_expected=served == _LATE, expected=f"{_LATE} served"),
    ]


def guarded(place: GuardedPlace, strike: Strike, remark: str) -> Cell:
    """The late clients are held back until the lane is ready. ``remark``: why the neighbours were hurt."""
    fates, idle = _strike_among_neighbours(place, strike)
    late = _start_late(place)
    parked = place.parked(_LATE)
    status = place.ctl.run("status").exit_status
    place.say(f"lane {place.ctl.domain()['lane']['state']}, {parked} parked (status exit {status})")
    fates.append(_let_go(idle))
    ends = [fate(actor.finish()) for actor in late]
    served = ends.count(_SERVED)
    return [
        _neighbours(fates, remark),
        Fact(
            f"late: {parked} of {_LATE} parked, {tally(ends)}",
            harm=served < _LATE,
            as_expected=parked == served == _LATE,
            expected=f"{_LATE} parked, then {_LATE} served",
        ),
    ]


def _strike_among_neighbours(place: Place, strike: Strike) -> tuple[list[str], Actor]:
    """The fates of the neighbours that compute, and the one that does not."""
    busy = place.crowd(*_BUSY)
    (idle,) = place.crowd(_IDLE)
    for actor in busy:
        actor.go()
    strike(place)
    return [actor.stricken() for actor in busy], idle


def _start_late(place: Place) -> list[Actor]:
    argv = place.programs.worker(Work(seconds=0))
    late = [place.start(f"late client {number + 1}", argv) for number in range(_LATE)]
    place.say(f"{len(late)} more clients start now")
    return late


def _let_go(idle: Actor) -> str:
    idle.say("makes its next CUDA call")
    idle.go()
    return idle.stricken()


def _neighbours(fates: list[str], remark: str) -> Fact:
    hurt = any(each != LIVES for each in fates)
    return Fact(
        f"neighbours: {tally(fates)}{f' ({remark})' if remark and hurt else ''}",
        harm=hurt,
        as_expected=all(each.startswith("died") for each in fates),
        expected="all die",
    )
