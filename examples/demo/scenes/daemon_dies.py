"""The MPS control daemon dies."""

from typing import Final

from examples.demo.actor import LIVES, WITH_MPS, WITHOUT_MPS
from examples.demo.fact import Cell, Fact
from examples.demo.stage import GuardedPlace, Place, Scene, StockPlace
from tests.bench.core.control_ui import Reply

_SHARE: Final = "50.0"
_SET: Final = "set_default_active_thread_percentage 50"
_GET: Final = "get_default_active_thread_percentage"


def _stock(place: StockPlace) -> Cell:
    running = _kill_under_a_client(place)
    ran, silently = _next_program(place)
    reply = _ask(place, _GET)
    return [
        running,
        Fact(
            f"next program: {'silently ' if silently and ran == WITHOUT_MPS else ''}{ran}",
            harm=ran != WITH_MPS,
            as_expected=ran == WITHOUT_MPS and silently,
            expected=f"silently {WITHOUT_MPS}",
        ),
        Fact(
            f"setting: {'no daemon answers' if reply.exit_status else ' '.join(reply.lines)}",
            harm=reply.lines != (_SHARE,),
            as_expected=reply.exit_status != 0,
            expected="no daemon answers",
        ),
    ]


def _guarded(place: GuardedPlace) -> Cell:
    before, _ = place.guard.lane()
    running = _kill_under_a_client(place)
    ran, _ = _next_program(place)
    after, _ = place.guard.lane()
    reply = _ask(place, _GET)
    starts = after.starts - before.starts
    replaced = after.control is not None and after.control != before.control
    kept = reply.lines == (_SHARE,)
    return [
        running,
        Fact(
            f"lane: {f'started again, {after.state.value}' if replaced and starts == 1 else f'{starts} starts'}",
            harm=not replaced,
            as_expected=replaced and starts == 1,
            expected="started again, once",
        ),
        Fact(
            f"next program: {ran}",
            harm=ran != WITH_MPS,
            as_expected=ran == WITH_MPS,
            expected=WITH_MPS,
        ),
        Fact(
            f"setting: {' '.join(reply.lines)}{', as before' if kept else ''}",
            harm=not kept,
            as_expected=kept,
            expected=_SHARE,
        ),
    ]


def _kill_under_a_client(place: Place) -> Fact:
    """Set a default, then kill the daemon while a client computes."""
    _ask(place, _SET)
    (running,) = place.crowd("client 1")
    running.go()
    place.kill_control_daemon()
    became = running.fate_after_fault()
    return Fact(
        f"its client: {became}",
        harm=became != LIVES,
        as_expected=became.startswith("died"),
        expected="died with its server",
    )


def _next_program(place: Place) -> tuple[str, bool]:
    """Return whether the next program runs under MPS, by the daemon's list, and whether it ends without an error."""
    program = place.start("next program")
    program.arrive()
    mode = WITH_MPS if place.under_mps([program]) else WITHOUT_MPS
    program.client.stop()
    outcome = program.finish()
    return mode, outcome.ok and not outcome.noise


def _ask(place: Place, command: str) -> Reply:
    reply = place.target.ui.ask(command)
    place.say(f"{command}: {' '.join(reply.lines)} (exit {reply.exit_status})")
    return reply


SCENE: Final = Scene(
    "4 the MPS daemon dies",
    "A setting is made, then the MPS control daemon is killed while a client computes. Its server goes with it, and so "
    "does that client. Then the next program starts.",
    _stock,
    _guarded,
)
