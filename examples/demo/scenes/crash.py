"""One client is killed while its kernel runs."""

from typing import Final

from examples.demo.actor import PATIENCE
from examples.demo.fact import Cell, Fact
from examples.demo.scenes import aftermath
from examples.demo.stage import GuardedPlace, Place, Scene
from tests.bench.core.guard import Options


def _trigger_fault(place: Place) -> int:
    victim = place.start("victim", place.programs.long_kernel())
    victim.arrive()
    if isinstance(place, GuardedPlace):
        place.watched(victim.pid)
    victim.go()
    victim.client.wait_for("begin", PATIENCE)
    victim.kill()
    victim.say("gets SIGKILL while its kernel runs")
    pid = victim.pid
    victim.finish()
    return pid


def _trigger_on_stock(place: Place) -> None:
    _trigger_fault(place)


def _guarded(place: GuardedPlace) -> Cell:
    """Play with the guard, which keeps the dead client's address space until its kernel has ended."""
    killed: list[int] = []
    cell = aftermath.isolated(place, lambda there: killed.append(_trigger_fault(there)))
    culprit, confidence = place.culprit()
    named = culprit == killed[0]
    place.say(f"mpsguard-ctl incidents: the culprit is {'the victim' if named else culprit}, {confidence}")
    said = f"incident: culprit {'named' if named else 'not named'}, {confidence}"
    return [*cell, Fact(said, harm=not named, as_expected=named, expected="the killed client named")]


SCENE: Final = Scene(
    "3 one client is killed",
    "SIGKILL meets a client whose kernel is running. On stock MPS its neighbours die of that. The guard keeps the dead "
    "client's address space (a lifeline) until the kernel has ended by itself, and no other client is hurt. Look again "
    "at the clients that start right after it.",
    lambda place: aftermath.stock(place, _trigger_on_stock),
    _guarded,
    Options(crash_hold=5, simulated_driver=True),
)
