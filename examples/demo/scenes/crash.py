"""One client is killed while its kernel runs."""

from typing import Final

from examples.demo.actor import PATIENCE
from examples.demo.fact import Cell
from examples.demo.scenes import aftermath
from examples.demo.stage import GuardedPlace, Place, Scene

_SIMULATED: Final = "simulated: no driver to hold on to"


def _trigger_fault(place: Place) -> None:
    victim = place.start("victim", place.programs.long_kernel())
    victim.arrive()
    victim.go()
    victim.client.wait_for("begin", PATIENCE)
    victim.kill()
    victim.say("gets SIGKILL while its kernel runs")
    victim.finish()


def _guarded(place: GuardedPlace) -> Cell:
    """On the real stack the guard keeps the dead client's address space until its kernel has ended."""
    if place.programs.simulated:
        return aftermath.guarded(place, _trigger_fault, _SIMULATED)
    return aftermath.isolated(place, _trigger_fault)


SCENE: Final = Scene(
    "3 one client is killed",
    "SIGKILL meets a client whose kernel is running, and its neighbours die of that. On a real GPU the guard's "
    "lifeline keeps them alive; the simulated one has no driver to hold on to. Look again at the clients that start "
    "right after it.",
    lambda place: aftermath.stock(place, _trigger_fault),
    _guarded,
)
