"""One client is killed while its kernel runs."""

from typing import Final

from demo.actor import PATIENCE
from demo.scenes import aftermath
from demo.stage import Place, Scene


def _strike(place: Place) -> None:
    victim = place.start("victim", place.programs.long_kernel())
    victim.arrive()
    victim.go()
    victim.client.wait_for("begin", PATIENCE)
    victim.kill()
    victim.say("gets SIGKILL while its kernel runs")
    victim.finish()


SCENE: Final = Scene(
    "3 one client is killed",
    "SIGKILL meets a client whose kernel is running. Its neighbours die of that too, in both columns: again, this is "
    "not isolated yet. Again, look at the clients that start right after it.",
    lambda place: aftermath.stock(place, _strike),
    lambda place: aftermath.guarded(place, _strike),
)
