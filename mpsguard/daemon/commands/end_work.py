"""The guard's half of `mpsguard run`: end the GPU work of those of some processes that are its clients.

The asker names processes as it sees them, in its own pid namespace, which may be a container's. A process of a
namespace nested in that one is not found.
"""

import asyncio
from functools import partial
from typing import Final

from mpsguard.control_api.handler import Handler
from mpsguard.control_api.messages.end_work import Arguments, EndWorkResult, WorkEnded
from mpsguard.control_api.protocol import RequestError
from mpsguard.daemon.domain import Domain
from mpsguard.daemon.guard import Guard
from mpsguard.linux.processes import process_tree
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.model import Client, ProcessKey
from mpsguard.remedies import termination
from mpsguard.remedies.termination import Work

_MAX_WAIT: Final = 300.0
"""Seconds; more than any control daemon needs."""


async def serve(guard: Guard, arguments: Arguments) -> EndWorkResult:
    """The server half."""
    if not 0 <= arguments.within <= _MAX_WAIT:
        raise RequestError("arguments", f"within: {arguments.within:g} s is not from 0 to {_MAX_WAIT:g} s")
    wanted = frozenset(arguments.processes)
    name = partial(_name_there, pid_namespace=arguments.pid_namespace)
    for domain in guard.domains.values():
        # A program that has just come has work already, and is known a moment later.
        await domain.clients.entered(lambda process: name(process) in wanted)
    found = [
        _end(guard, domain, client, named, arguments.within)
        for domain in guard.domains.values()
        for client in domain.clients.all()
        if (named := name(client.process)) in wanted and named is not None
    ]
    return EndWorkResult(tuple(await asyncio.gather(*found)))


def _name_there(process: ProcessKey, *, pid_namespace: int | None) -> ProcessKey | None:
    """Return what a process is called in a pid namespace, or None if that is not the one it was started in."""
    if process_tree.pid_namespace() == pid_namespace:
        return process
    if process_tree.pid_namespace(process.pid) != pid_namespace:
        return None
    inner = process_tree.innermost_pid(process.pid)
    return None if inner is None else ProcessKey(inner, process.start_ticks)


async def _end(guard: Guard, domain: Domain, client: Client, named: ProcessKey, within: float) -> WorkEnded:
    try:
        handle = ProcessHandle.hold(client.process)
    except ProcessLookupError:
        return WorkEnded(named, Work.GONE, "the process has ended")
    lane = domain.lane_of(client.process)
    with handle:
        if domain.lanes.has_lost_its_work(client.process, lane):
            # Its server would answer only when it has let go of all its clients, which this one keeps it from.
            return WorkEnded(named, Work.NONE, "its lane has faulted, and its work has ended with it")
        end = await termination.end_work(lane, handle, within)
    if end.work not in (Work.NONE, Work.GONE):
        guard.events.publish(
            "client_terminated" if end.work is Work.ENDED else "client_not_terminated",
            domain.name,
            pid=client.process.pid,
            server=end.server,
            answer=end.answer,
            signals=[],
            ended=False,
        )
    return WorkEnded(named, end.work, end.answer)


HANDLER = Handler("end_work", Arguments, serve)
