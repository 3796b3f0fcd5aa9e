"""`mpsguard-ctl mps`: any command of the vendor's control daemon, through the guard's worker and its deadline."""

import re
import sys

import click

from mpsguard.cli.session import CliSession, Exit, with_session
from mpsguard.control_api.messages.mps import Arguments
from mpsguard.lanes.command import CommandReply

_REFUSALS = re.compile(
    r"Unknown command |Invalid |Server (\d+ )?not found|A user id \(UID\) is required", re.IGNORECASE
)
"""How the control daemon's answer to a command that it does not carry out begins (535.261.03, 550.163.01). Its exit
status is 0 all the same."""


def refused(reply: CommandReply) -> bool:
    """Whether the control daemon did not carry the command out."""
    return reply.exit_status != 0 or bool(reply.lines and _REFUSALS.match(reply.lines[0]))


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--domain", help="Which domain, if there is more than one.")
@click.argument("command", nargs=-1, required=True)
@with_session
def mps(session: CliSession, domain: str | None, command: tuple[str, ...]) -> None:
    """Send COMMAND to the control daemon, as `echo COMMAND | nvidia-cuda-mps-control` would."""
    reply = session.ask("mps", Arguments(" ".join(command), domain), CommandReply)
    if session.as_json:
        session.print_json(reply)
    else:
        for line in reply.lines:
            click.echo(line)
    sys.exit(Exit.FAILED if refused(reply) else Exit.OK)
