"""What a client's fault or death does to the other clients, and to those that start right after it.

Two neighbours compute and are affected at once. The third one holds its context and is idle: it learns of the fault
with its next call. An MPS server creates a new context once the old clients are gone, and refuses new ones until then;
so the third one keeps the server in this state for as long as the tour needs to observe it.
"""

from collections.abc import Callable
from typing import Final

from examples.demo.actor import LIVES, Actor
from examples.demo.fact import Cell, Fact, fate, tally
from examples.demo.stage import GuardedPlace, Place, StockPlace
from tests.bench.core.events import MPS_SERVER_NOT_READY
from tests.bench.core.programs import Work

_BUSY: Final = ("neighbour 1", "neighbour 2")
_IDLE: Final = "neighbour 3"
_LATE: Final = 3
_SERVED: Final = "served"
_REFUSED: Final = f"refused, error {MPS_SERVER_NOT_READY}"

Trigger = Callable[[Place], None]
"""Starts the culprit and lets it fault; returns afterwards."""


def stock(place: StockPlace, trigger: Trigger) -> Cell:
    """Play on stock MPS: late clients meet a server that refuses them."""
    fates, idle = _fault_among_neighbours(place, trigger)
    late = [fate(actor.finish()) for actor in _start_late(place)]
    fates.append(_make_next_call(idle))
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


def isolated(place: GuardedPlace, trigger: Trigger) -> Cell:
    """Play with an isolated fault: the neighbours are unaffected, and late clients are served at once."""
    fates, idle = _fault_among_neighbours(place, trigger)
    ends = [fate(actor.finish()) for actor in _start_late(place)]
    idle.go()
    fates.append(idle.fate_after_fault())
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


def guarded(place: GuardedPlace, trigger: Trigger, remark: str) -> Cell:
    """Play with the guard: late clients are parked until the lane is ready. ``remark``: why neighbours died."""
    fates, idle = _fault_among_neighbours(place, trigger)
    late = _start_late(place)
    parked = place.parked(_LATE)
    status = place.ctl.run("status").exit_status
    place.say(f"lane {place.ctl.domain()['lane']['state']}, {parked} parked (status exit {status})")
    fates.append(_make_next_call(idle))
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


def _fault_among_neighbours(place: Place, trigger: Trigger) -> tuple[list[str], Actor]:
    """Return the fates of the computing neighbours, and the idle one."""
    busy = place.crowd(*_BUSY)
    (idle,) = place.crowd(_IDLE)
    for actor in busy:
        actor.go()
    trigger(place)
    return [actor.fate_after_fault() for actor in busy], idle


def _start_late(place: Place) -> list[Actor]:
    argv = place.programs.worker(Work(seconds=0))
    late = [place.start(f"late client {number + 1}", argv) for number in range(_LATE)]
    place.say(f"{len(late)} more clients start now")
    return late


def _make_next_call(idle: Actor) -> str:
    idle.say("makes its next CUDA call")
    idle.go()
    return idle.fate_after_fault()


def _neighbours(fates: list[str], remark: str) -> Fact:
    hurt = any(each != LIVES for each in fates)
    return Fact(
        f"neighbours: {tally(fates)}{f' ({remark})' if remark and hurt else ''}",
        harm=hurt,
        as_expected=all(each.startswith("died") for each in fates),
        expected="all die",
    )
