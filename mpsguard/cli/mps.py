"""`mpsguard-ctl mps`: any command of the vendor's control daemon, through the guard's worker and its deadline."""

import sys

import click

from mpsguard.cli.session import CliSession, Exit, with_session
from mpsguard.guard.control_api.messages.lanes import MpsArguments
from mpsguard.guard.lanes.command import CommandReply, is_refusal


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--domain", help="Which domain, if there is more than one.")
@click.argument("command", nargs=-1, required=True)
@with_session
def mps(session: CliSession, domain: str | None, command: tuple[str, ...]) -> None:
    """Send COMMAND to the control daemon, as `echo COMMAND | nvidia-cuda-mps-control` would."""
    reply = session.ask("mps", MpsArguments(" ".join(command), domain), CommandReply)
    if session.as_json:
        session.print_json(reply)
    else:
        for line in reply.lines:
            click.echo(line)
    sys.exit(Exit.FAILED if is_refusal(reply) else Exit.OK)
