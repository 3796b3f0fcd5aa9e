"""A service on a lane that is struck: without a standby, and with one."""

import sys
from pathlib import Path
from typing import Final

from examples import demo
from examples.demo.actor import PATIENCE, Actor
from examples.demo.fact import Cell, Fact, fate
from examples.demo.reader import Reader
from examples.demo.scenes import fault
from examples.demo.scenes.aftermath import Strike
from examples.demo.simulated_service import HELD, SESSION
from examples.demo.stage import GuardedPlace, Place, Scene, StockPlace
from fault_injection.takeover.model import Request
from tests.gpu.core.guard import Options
from tests.gpu.failover.program import environment

_REQUEST: Final = Request("demo", tokens=2 * HELD, width=40)
_SERVICE: Final = (sys.executable, str(Path(demo.__file__).with_name("simulated_service.py")))
_RUN: Final = ("run", "--standby", "1", "--listen", "127.0.0.1:0")
_DONE: Final = "done, suite-0 to suite-1"


def stock(place: StockPlace, strike: Strike = fault.strike) -> Cell:
    """The service has the GPU to itself but for the culprit, and dies of what that does."""
    service = place.start("service", _SERVICE)
    with _asked(service) as reader:
        _strike(service, reader, strike, place)
        became = fate(service.finish())
        reader.read_all()
    return [
        _answer(reader, expected=HELD),
        Fact(
            f"service: {became}", harm=True, as_expected=became.startswith("died"), expected="dies of another's fault"
        ),
    ]


def guarded(place: GuardedPlace, strike: Strike = fault.strike) -> Cell:
    """The same service under `mpsguard run`, so that there is a standby."""
    place.say(f"$ mpsguard {' '.join(_RUN)} -- service")
    run = [sys.executable, "-m", "mpsguard.cli.guard", *_RUN, "--config", str(place.guard.config), "--", *_SERVICE]
    with place.terminated(place.start("service", run, environment(place.guard))) as service, _asked(service) as reader:
        place.standby_ready(SESSION)
        service.say("a standby is ready on the other lane")
        _strike(service, reader, strike, place)
        reader.read_all()
        told = "; ".join(place.takeovers()) or "none"
        lives = service.client.ended_with() is None
    place.say(f"mpsguard-ctl events: takeover {told}")
    return [
        _answer(reader, expected=_REQUEST.tokens),
        Fact(
            f"takeover: {told}{'' if lives else '; service ended'}",
            harm=not lives,
            as_expected=lives and told == _DONE,
            expected=_DONE,
        ),
    ]


def _asked(service: Actor) -> Reader:
    """A client that has asked."""
    service.arrive()
    return Reader(int(service.client.wait_for("serves", PATIENCE).number("port")), _REQUEST)


def _strike(service: Actor, reader: Reader, strike: Strike, place: Place) -> None:
    """Have somebody else do wrong while the service computes the token behind those that its client has."""
    reader.read(HELD)
    service.say(f"its client has {reader.tokens} of {_REQUEST.tokens} tokens")
    strike(place)


def _answer(reader: Reader, expected: int) -> Fact:
    return Fact(
        f"client: {reader.told()}",
        harm=not reader.whole,
        as_expected=reader.faithful and reader.tokens == expected,
        expected=f"{expected} of {_REQUEST.tokens} tokens",
    )


SCENE: Final = Scene(
    "6 a standby goes on",
    "A token server streams an answer to a network client, and another program on its lane faults as in scene 2. Under "
    "mpsguard run --standby 1 a second process of it waits on another lane, and goes on in the middle of the answer.",
    stock,
    guarded,
    options=Options(standby=True, host_memory=True),
    only_simulated="Left out on a GPU: the service of this scene is a simulated one, and those that go on there need "
    "PyTorch. scripts/gpu-suite failover plays this with them, and measures it.",
)
