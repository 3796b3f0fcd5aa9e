"""Commands about lanes: list them and their service classes, leave one, ask its control daemon."""

from typing import Any, Final

from mpsguard.guard import config
from mpsguard.guard.control_api.messages.lanes import (
    ClassesArguments,
    ClassList,
    ClassView,
    LaneList,
    MoveArguments,
    MpsArguments,
    Switchover,
)
from mpsguard.guard.control_api.protocol import NoArguments, RequestError
from mpsguard.guard.control_api.server import Handler
from mpsguard.guard.daemon.guard import Guard
from mpsguard.guard.lanes.command import Command, CommandFailedError, CommandReply
from mpsguard.linux.processes import procfs


async def _lanes(guard: Guard, _: NoArguments) -> LaneList:
    return LaneList(tuple([await lane.fresh() for domain in guard.domains.values() for lane in domain.lanes.all]))


async def _classes(guard: Guard, arguments: ClassesArguments) -> ClassList:
    domains = list(guard.domains.values()) if arguments.domain is None else [guard.domain(arguments.domain)]
    return ClassList(
        tuple(
            ClassView(
                domain.name,
                str(config.class_directory(domain.settings.pipe_directory, each.name)),
                each,
                domain.clients.of_class(each.name),
            )
            for domain in domains
            for each in domain.settings.classes
        ),
        tuple(loop.view for domain in domains for loop in guard.objectives.get(domain.name, ())),
    )


async def _move(guard: Guard, arguments: MoveArguments) -> Switchover:
    domain = guard.domain(arguments.domain)
    if domain.lanes.spare is None:
        raise RequestError("failed", f"domain {domain.name!r} has one lane only (standby = true gives it another)")
    if guard.vault is None:
        raise RequestError("failed", "there is no vault, and so no session that could go on elsewhere")
    return await guard.failover.move(domain.view)


async def _mps(guard: Guard, arguments: MpsArguments) -> CommandReply:
    if not arguments.line.strip() or "\n" in arguments.line or "\0" in arguments.line or len(arguments.line) > 1024:
        raise RequestError("arguments", "one command line of 1 to 1024 characters is needed")
    domain = guard.domain(arguments.domain)
    try:
        reply = await domain.broker.ui_sessions.run(Command(arguments.line))
    except CommandFailedError as error:
        raise RequestError("failed", str(error)) from None
    return CommandReply(tuple(procfs.printable(line) for line in reply.lines), reply.exit_status)


HANDLERS: Final[tuple[Handler[Guard, Any], ...]] = (
    Handler("lanes", NoArguments, _lanes),
    Handler("classes", ClassesArguments, _classes),
    Handler("move", MoveArguments, _move, goes_on="a switchover that has begun goes on: see event takeover"),
    Handler("mps", MpsArguments, _mps),
)
