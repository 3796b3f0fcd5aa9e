"""Commands about lanes: list them and their service classes, leave one, ask its control daemon."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import msgspec

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
from mpsguard.guard.daemon.domain import Domain
from mpsguard.guard.daemon.guard import Guard
from mpsguard.guard.lanes.command import Command, CommandFailedError, CommandReply
from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.model import LaneReport
from mpsguard.linux.processes import procfs

_LATER: Final = 1.0
"""Seconds behind a command's deadline by which it is known that a control daemon does not answer."""


async def reports(domains: Iterable[Domain]) -> dict[str, LaneReport]:
    """Return the report of each lane by the lane's name. All are looked at at once."""
    lanes = [lane for domain in domains for lane in domain.lanes.all]
    found = await asyncio.gather(*map(_report, lanes))
    return {lane.spec.name: report for lane, report in zip(lanes, found, strict=True)}


async def _report(lane: Lane) -> LaneReport:
    # Where the control daemon hangs, the look under way ends after one deadline, and says so; the next after two.
    with suppress(TimeoutError):
        async with asyncio.timeout(lane.spec.command_deadline + _LATER):
            return await lane.fresh()
    return lane.report


async def _lanes(guard: Guard, _: NoArguments) -> LaneList:
    return LaneList(tuple((await reports(guard.domains.values())).values()))


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
    was, to = domain.lanes.active.spec.name, domain.lanes.spare.spec.name
    programs = domain.seconds.moves.on(was)
    if guard.vault is None and not programs:
        raise RequestError("failed", "there is no vault, and so no session that could go on elsewhere")
    done = Switchover(was, None, (), ()) if guard.vault is None else await guard.failover.move(domain.view)
    if not programs:
        return done
    # Before they move: what comes meanwhile would be left behind.
    unsaved = domain.view.move_to(to, was, "an operator said so", guard.events) or done.unsaved
    moved, left = await domain.seconds.moves.drain(programs, to)
    return msgspec.structs.replace(done, to=to, unsaved=unsaved, programs=moved, programs_left=left)


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
