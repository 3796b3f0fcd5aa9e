"""Three unmodified clients share the GPU."""

from typing import Final

from examples.demo.actor import Actor
from examples.demo.fact import Cell, Fact, tally
from examples.demo.stage import GuardedPlace, Place, Scene, StockPlace

_NAMES: Final = ("client 1", "client 2", "client 3")
_COUNT: Final = len(_NAMES)


def _stock(place: StockPlace) -> Cell:
    actors = place.crowd(*_NAMES)
    return [_listed(place, actors), _finish(actors)]


def _guarded(place: GuardedPlace) -> Cell:
    actors = place.crowd(*_NAMES)
    listed = _listed(place, actors)
    known = {client.process.pid for client in place.guard.clients()}
    seen = sum(actor.pid in known for actor in actors)
    place.show("status")
    place.show("clients")
    health = place.ctl.run("status").exit_status
    return [
        listed,
        _finish(actors),
        Fact(
            f"mpsguard-ctl: {seen} of {_COUNT}, status exit {health}",
            harm=health != 0,
            as_expected=seen == _COUNT and health == 0,
            expected=f"{_COUNT} of {_COUNT}, status exit 0",
        ),
    ]


def _listed(place: Place, actors: list[Actor]) -> Fact:
    for actor in actors:
        actor.go()
    listed = len(place.under_mps(actors))
    place.say(f"get_client_list names {listed} of them")
    return Fact(
        f"{listed} of {_COUNT} in get_client_list",
        harm=listed != _COUNT,
        as_expected=listed == _COUNT,
        expected=f"{_COUNT} of {_COUNT}",
    )


def _finish(actors: list[Actor]) -> Fact:
    for actor in actors:
        actor.client.stop()
    outcomes = [actor.finish() for actor in actors]
    good = all(outcome.ok for outcome in outcomes)
    fates = [
        "finish, exit 0" if outcome.ok else f"end with {outcome.exit_status}, error {outcome.code}"
        for outcome in outcomes
    ]
    return Fact(tally(fates), harm=not good, as_expected=good, expected=f"{_COUNT} of {_COUNT} finish, exit 0")


SCENE: Final = Scene(
    "1 three clients share",
    "Three unmodified CUDA programs compute at the same time, first on stock MPS, then through mpsguard. They only get "
    "another CUDA_MPS_PIPE_DIRECTORY.",
    _stock,
    _guarded,
)
