"""An unmodified program on a lane with a fault: as it is, and under the preload with a second driver."""

import sys
from pathlib import Path
from typing import Final

from examples import demo
from examples.demo.actor import PATIENCE, Actor
from examples.demo.fact import Cell, Fact, fate
from examples.demo.scenes import fault
from examples.demo.scenes.aftermath import Trigger
from examples.demo.stage import GuardedPlace, Scene, StockPlace
from tests.bench.core.errors import SuiteError
from tests.bench.core.guard import Options

_PROGRAM: Final = (sys.executable, str(Path(demo.__file__).with_name("simulated_program.py")))
_LIVES: Final = "goes on, suite-0 to suite-1"


def stock(place: StockPlace, trigger: Trigger = fault.trigger) -> Cell:
    """Play on stock MPS: the program dies of the other program's fault."""
    program = place.start("program", _PROGRAM)
    program.arrive()
    trigger(place)
    became = fate(program.finish())
    return [Fact(f"program: {became}", harm=True, as_expected=became.startswith("died"), expected="dies")]


def guarded(place: GuardedPlace, trigger: Trigger = fault.trigger) -> Cell:
    """Play it under the preload: its second driver goes on, on the other lane."""
    program = place.start("program", _PROGRAM, {"MPSGUARD_SECOND_DRIVER": "cold"})
    program.arrive()
    survives = place.survives(program.pid)
    program.say(f"mpsguard-ctl clients: survives: {survives}")
    trigger(place)
    became = _after(place, program)
    return [
        Fact(f"beforehand: survives: {survives}", harm=False, as_expected=survives == "yes", expected="yes"),
        Fact(f"program: {became}", harm=became != _LIVES, as_expected=became == _LIVES, expected=_LIVES),
    ]


def _after(place: GuardedPlace, program: Actor) -> str:
    try:
        program.client.wait_for("went_over", PATIENCE)
    except (SuiteError, TimeoutError):
        return fate(program.finish())
    program.say("its second driver goes on")
    lanes = place.went_over(program.pid)
    program.client.stop()
    outcome = program.finish()
    return f"goes on, {lanes}" if outcome.ok else fate(outcome)


SCENE: Final = Scene(
    "7 a second driver",
    "A program without a standby, which nobody changed, computes while another one faults as in scene 2. Under the "
    "preload with MPSGUARD_SECOND_DRIVER=cold (experimental, off by default) a second driver in its own process takes "
    "it over on the other lane. Program, preload and driver are simulated here.",
    stock,
    guarded,
    options=Options(standby=True),
    only_simulated="Left out on a GPU: the program of this scene is a simulated one. "
    "scripts/gpu-suite second_driver measures real ones.",
)
