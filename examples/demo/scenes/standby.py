"""A service on a lane with a fault: without a standby, and with one."""

import sys
from pathlib import Path
from typing import Final

from examples import demo
from examples.demo.actor import PATIENCE, Actor
from examples.demo.fact import Cell, Fact, fate
from examples.demo.reader import Reader
from examples.demo.scenes import fault
from examples.demo.scenes.aftermath import Trigger
from examples.demo.simulated_service import HELD, SESSION
from examples.demo.stage import GuardedPlace, Place, Scene, StockPlace
from fault_injection.takeover.model import Request
from tests.bench.core.guard import Options
from tests.bench.failover.program import environment

_REQUEST: Final = Request("demo", tokens=2 * HELD, width=40)
_SERVICE: Final = (sys.executable, str(Path(demo.__file__).with_name("simulated_service.py")))
_RUN: Final = ("run", "--standby", "1", "--listen", "127.0.0.1:0")
_DONE: Final = "done, suite-0 to suite-1"


def stock(place: StockPlace, trigger: Trigger = fault.trigger) -> Cell:
    """Play on stock MPS: the service dies of the other program's fault."""
    service = place.start("service", _SERVICE)
    with _connect(service) as reader:
        _trigger_fault(service, reader, trigger, place)
        became = fate(service.finish())
        reader.read_all()
    return [
        _answer(reader, expected=HELD),
        Fact(
            f"service: {became}", harm=True, as_expected=became.startswith("died"), expected="dies of another's fault"
        ),
    ]


def guarded(place: GuardedPlace, trigger: Trigger = fault.trigger) -> Cell:
    """Play the same service under `mpsguard run`, with a standby."""
    place.say(f"$ mpsguard {' '.join(_RUN)} -- service")
    run = [sys.executable, "-m", "mpsguard.cli.guard", *_RUN, "--config", str(place.guard.config), "--", *_SERVICE]
    with (
        place.terminated(place.start("service", run, environment(place.guard))) as service,
        _connect(service) as reader,
    ):
        place.standby_ready(SESSION)
        service.say("a standby is ready on the other lane")
        _trigger_fault(service, reader, trigger, place)
        reader.read_all()
        takeovers = "; ".join(place.takeovers()) or "none"
        lives = service.client.ended_with() is None
    place.say(f"mpsguard-ctl events: takeover {takeovers}")
    return [
        _answer(reader, expected=_REQUEST.tokens),
        Fact(
            f"takeover: {takeovers}{'' if lives else '; service ended'}",
            harm=not lives,
            as_expected=lives and takeovers == _DONE,
            expected=_DONE,
        ),
    ]


def _connect(service: Actor) -> Reader:
    """Return a network client that has sent its request."""
    service.arrive()
    return Reader(int(service.client.wait_for("serves", PATIENCE).number("port")), _REQUEST)


def _trigger_fault(service: Actor, reader: Reader, trigger: Trigger, place: Place) -> None:
    """Let another client fault while the service computes the token after those that its client has received."""
    reader.read(HELD)
    service.say(f"its client has {reader.tokens} of {_REQUEST.tokens} tokens")
    trigger(place)


def _answer(reader: Reader, expected: int) -> Fact:
    return Fact(
        f"client: {reader.summary()}",
        harm=not reader.whole,
        as_expected=reader.faithful and reader.tokens == expected,
        expected=f"{expected} of {_REQUEST.tokens} tokens",
    )


SCENE: Final = Scene(
    "6 a standby takes over",
    "A token server streams an answer to a network client, and another program on its lane faults as in scene 2. Under "
    "mpsguard run --standby 1 a second process of it waits on another lane, and continues in the middle of the answer.",
    stock,
    guarded,
    options=Options(standby=True, host_memory=True),
    only_simulated="Left out on a GPU: the service of this scene is a simulated one, and those that go on there need "
    "PyTorch. scripts/gpu-suite failover plays this with them, and measures it.",
)
