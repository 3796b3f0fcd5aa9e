"""`mpsguard-ctl lifelines`: what is held of ended clients, and letting go of it."""

import click

from mpsguard.cli.session import CliSession, with_session
from mpsguard.cli.tables import show_table
from mpsguard.guard.control_api.messages.clients import LifelineList, LifelinesArguments
from mpsguard.guard.model import Lifeline


def _at_most(held: Lifeline) -> str:
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
def lifelines(session: CliSession, release: int | None) -> None:
    """List what is held of clients that have ended, so that their kernels end without harm to the others."""
    result = session.ask("lifelines", LifelinesArguments(release), LifelineList)
    if session.as_json:
        session.print_json(result)
        return
    show_table(
        session.console,
        ("PID", "HELD FOR", "AT MOST"),
        [(held.pid, f"{result.now - held.since:.1f} s", _at_most(held)) for held in result.lifelines],
        cut="AT MOST",
    )
