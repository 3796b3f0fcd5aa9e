"""The server half of `mpsguard-ctl mps`."""

from mpsguard.guard.control_api.handler import Handler
from mpsguard.guard.control_api.messages.mps import Arguments
from mpsguard.guard.control_api.protocol import RequestError
from mpsguard.guard.daemon.guard import Guard
from mpsguard.guard.lanes.command import Command, CommandFailedError, CommandReply
from mpsguard.linux.processes import procfs


async def serve(guard: Guard, arguments: Arguments) -> CommandReply:
    """The server half."""
    if not arguments.line.strip() or "\n" in arguments.line or "\0" in arguments.line or len(arguments.line) > 1024:
        raise RequestError("arguments", "one command line of 1 to 1024 characters is needed")
    domain = guard.domain(arguments.domain)
    try:
        reply = await domain.broker.ui_sessions.run(Command(arguments.line))
    except CommandFailedError as error:
        raise RequestError("failed", str(error)) from None
    return CommandReply(tuple(procfs.printable(line) for line in reply.lines), reply.exit_status)


HANDLER = Handler("mps", Arguments, serve)
