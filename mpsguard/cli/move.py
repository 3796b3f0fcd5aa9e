"""`mpsguard-ctl move`: leave a lane on purpose, while it lives: its sessions go on at their standbys."""

import sys

import click

from mpsguard.cli.session import CliSession, Exit, with_session
from mpsguard.guard.control_api.messages.lanes import MoveArguments, Switchover


@click.command()
@click.option("--domain", help="Which one, if there are several.")
@with_session
def move(session: CliSession, domain: str | None) -> None:
    """Move the work of a domain to its other lane: a planned takeover of every session with a standby that is ready.

    Sessions without one stay where they are, as do clients that have none; new clients are brought to the lane on which
    the work is. Exit 3 if a session was left behind, or if the next guard will not know of the move.
    """
    result = session.ask("move", MoveArguments(domain), Switchover)
    if session.as_json:
        session.print_json(result)
    else:
        for key in result.moved:
            session.console.print(f"{key} goes on on {result.to}", markup=False)
        for key in result.left:
            session.console.print(f"{key} stays on {result.lane}: no standby of it is ready elsewhere", markup=False)
        if not result.moved and not result.left:
            session.console.print(f"no session is written from {result.lane}", markup=False)
        if result.unsaved is not None:
            session.console.print(f"the move could not be saved: {result.unsaved}", markup=False)
            session.console.print(f"the next guard will bring new work to {result.lane}", markup=False)
    sys.exit(Exit.DEGRADED if result.left or result.unsaved is not None else Exit.OK)
