"""`mpsguard-ctl mps`: any command of the vendor's control daemon, through the guard's worker and its deadline."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import click
import msgspec

from mpsguard.cli.session import Exit, Session, with_session
from mpsguard.control_api.handler import Handler
from mpsguard.control_api.protocol import RequestError
from mpsguard.lanes.command import Command, CommandFailedError, Reply
from mpsguard.linux import procfs

if TYPE_CHECKING:
    from mpsguard.daemon.guard import Guard


class Arguments(msgspec.Struct):
    """One command line."""

    line: str
    domain: str | None = None


async def serve(guard: Guard, arguments: Arguments) -> Reply:
    """The server half."""
    if not arguments.line.strip() or "\n" in arguments.line or "\0" in arguments.line or len(arguments.line) > 1024:
        raise RequestError("arguments", "one command line of 1 to 1024 characters is needed")
    domain = guard.domain(arguments.domain)
    try:
        reply = await domain.broker.ui_sessions.run(Command(arguments.line))
    except CommandFailedError as error:
        raise RequestError("failed", str(error)) from None
    return Reply(tuple(procfs.printable(line) for line in reply.lines), reply.exit_status)


HANDLER = Handler("mps", Arguments, serve)


_REFUSALS = re.compile(
    r"Unknown command |Invalid |Server (\d+ )?not found|A user id \(UID\) is required", re.IGNORECASE
)
"""How the control daemon's answer to a command that it does not carry out begins (535.261.03, 550.163.01). Its exit
status is 0 all the same."""


def refused(reply: Reply) -> bool:
    """Whether the control daemon did not carry the command out."""
    return reply.exit_status != 0 or bool(reply.lines and _REFUSALS.match(reply.lines[0]))


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--domain", help="Which domain, if there is more than one.")
@click.argument("command", nargs=-1, required=True)
@with_session
def mps(session: Session, domain: str | None, command: tuple[str, ...]) -> None:
    """Send COMMAND to the control daemon, as `echo COMMAND | nvidia-cuda-mps-control` would."""
    reply = session.ask("mps", Arguments(" ".join(command), domain), Reply)
    if session.as_json:
        session.print_json(reply)
    else:
        for line in reply.lines:
            click.echo(line)
    sys.exit(Exit.FAILED if refused(reply) else Exit.OK)
