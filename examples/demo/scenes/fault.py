"""One client causes a fault on the GPU."""

from typing import Final

from examples.demo.actor import PATIENCE
from examples.demo.scenes import aftermath
from examples.demo.stage import Place, Scene
from tests.bench.core.programs import Work

_NOT_ISOLATED: Final = "cannot be isolated: see 6 and 7"
_TRAP: Final = Work(seconds=60, controlled=True, fault="trap", fault_at=0.1)


def trigger(place: Place) -> None:
    """Start a client that causes an SM fault, and wait for its end."""
    culprit = place.start("culprit", place.programs.worker(_TRAP))
    culprit.arrive()
    culprit.go()
    culprit.client.wait_for("fault", PATIENCE)
    culprit.say("its kernel executes a trap")
    culprit.finish()


SCENE: Final = Scene(
    "2 one client faults",
    "A kernel of one client executes a trap. Such an SM fault cannot be isolated on the stock driver: it ends the "
    "neighbours, in both columns. A program with a standby or a second driver survives: scenes 6 and 7. Look at the "
    "clients that start right after it, while neighbour 3, which is idle, has not noticed.",
    lambda place: aftermath.stock(place, trigger),
    lambda place: aftermath.guarded(place, trigger, _NOT_ISOLATED),
)
