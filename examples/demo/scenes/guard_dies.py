"""The guard itself is SIGKILLed and started again."""

import time
from typing import Final

from examples.demo.actor import WITH_MPS, WITHOUT_MPS
from examples.demo.fact import Cell, Fact
from examples.demo.stage import GuardedPlace, Scene

_NAMES: Final = ("client 1", "client 2", "client 3")
_COUNT: Final = len(_NAMES)
_WAITS: Final = 1.0
"""Seconds without progress after which a client at a dead guard's sockets counts as waiting; a start takes 0.2 s."""


def _guarded(place: GuardedPlace) -> Cell:
    actors = place.crowd(*_NAMES)
    for actor in actors:
        actor.go()
    before, _ = place.guard.lane()
    killed = time.monotonic()
    place.guard.kill()
    place.say(f"guard SIGKILLed (mpsguard-ctl status exit {place.ctl.run('status').exit_status})")

    newcomer = place.start("newcomer")
    waited = newcomer.waits(_WAITS)
    newcomer.say(f"{'waits in' if waited else 'does not wait in'} cuInit, at the held socket")
    working = sum(actor.works(killed) for actor in actors)
    place.say(f"{working} of {_COUNT} clients still compute")

    place.guard.start()
    place.say("the next guard is there")
    newcomer.arrive()
    mode = WITH_MPS if place.under_mps([newcomer]) else WITHOUT_MPS
    after, _ = place.guard.lane()
    adopted = {client.process.pid for client in place.guard.clients() if client.adopted}
    found = sum(actor.pid in adopted for actor in actors)
    # A control daemon is identified by pid and start time, so a replacement with the same pid would not be equal.
    same = after.adopted and after.control == before.control
    place.say(f"adopted: {'the lane' if same else 'no lane'}, {found} of {_COUNT} clients")

    for actor in (*actors, newcomer):
        actor.client.stop()
    fine = sum(actor.finish().ok for actor in actors)
    newcomer_fine = newcomer.finish().ok
    return [
        Fact(
            f"clients: {working} of {_COUNT} go on, {fine} finish",
            harm=fine < _COUNT,
            as_expected=working == fine == _COUNT,
            expected=f"{_COUNT} of {_COUNT} go on and finish",
        ),
        Fact(
            f"newcomer: {'waits' if waited else 'does not wait'}, then {mode}",
            harm=mode != WITH_MPS or not newcomer_fine,
            as_expected=waited and mode == WITH_MPS and newcomer_fine,
            expected=f"waits, then {WITH_MPS}",
        ),
        Fact(
            f"adopted: {'the lane' if same else 'no lane'}, {found} of {_COUNT} clients",
            harm=found < _COUNT,
            as_expected=same and found == _COUNT,
            expected=f"the lane and {_COUNT} of {_COUNT} clients",
        ),
    ]


SCENE: Final = Scene(
    "5 the guard is killed",
    "The guard itself gets SIGKILL. No data passes through it, so its clients should not notice. The tour plays "
    "systemd's part here: it holds the listening sockets, as mpsguard.socket does, and starts the guard again. Stock "
    "MPS has no guard that could be killed.",
    None,
    _guarded,
)
