"""`mpsguard-ctl lifelines`: what is held of ended clients, and letting go of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click
import msgspec

from mpsguard.cli.session import Session, with_session
from mpsguard.cli.tables import show_table
from mpsguard.control_api.handler import Handler
from mpsguard.control_api.protocol import RequestError
from mpsguard.remedies.held_lifelines import Held

if TYPE_CHECKING:
    from mpsguard.daemon.guard import Guard


class Arguments(msgspec.Struct):
    """Whom to let go of, if anybody."""

    release: int | None = None


class LifelineList(msgspec.Struct, frozen=True):
    """What is held, and when that was so."""

    now: float
    """CLOCK_MONOTONIC seconds, the clock of the times in it."""
    lifelines: tuple[Held, ...]


async def serve(guard: Guard, arguments: Arguments) -> LifelineList:
    """The server half."""
    if guard.investigation is None:
        raise RequestError("busy", "the guard is still starting")
    lifelines = guard.investigation.sensors.lifelines
    if arguments.release is not None and not lifelines.release_pid(arguments.release, "an operator said so"):
        raise RequestError("failed", f"no lifeline of process {arguments.release} is held")
    return LifelineList(time.monotonic(), tuple(lifelines.held()))


HANDLER = Handler("lifelines", Arguments, serve)


def _at_most(held: Held) -> str:
    seconds = f"{held.until - held.since:.1f} s"
    return f"{seconds}, then until the GPUs are idle" if held.beyond else seconds


@click.command()
@click.option(
    "--release",
    type=click.IntRange(1),
    metavar="PID",
    help="Let go of an ended client now. If its kernel still runs, all clients of its lane end.",
)
@with_session
def lifelines(session: Session, release: int | None) -> None:
    """List what is held of clients that have ended, so that their kernels end without harm to the others."""
    result = session.ask("lifelines", Arguments(release), LifelineList)
    if session.as_json:
        session.print_json(result)
        return
    show_table(
        session.console,
        ("PID", "HELD FOR", "AT MOST"),
        [(held.pid, f"{result.now - held.since:.1f} s", _at_most(held)) for held in result.lifelines],
        cut="AT MOST",
    )
