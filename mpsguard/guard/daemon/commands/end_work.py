"""The guard's half of `mpsguard run`: end the GPU work of those of some processes that are its clients.

The asker names processes as it sees them, in its own pid namespace, which may be a container's. A process of a
namespace nested in that one is not found.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from mpsguard.guard.control_api.handler import Handler
from mpsguard.guard.control_api.messages.end_work import Arguments, EndWorkResult, WorkEnded
from mpsguard.guard.control_api.protocol import RequestError
from mpsguard.guard.daemon.domain import Domain
from mpsguard.guard.daemon.guard import Guard
from mpsguard.guard.model import Client
from mpsguard.guard.remedies import termination
from mpsguard.guard.remedies.termination import Work
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import process_tree

_MAX_WAIT: Final = 300.0
"""Seconds; more than any control daemon needs."""


async def serve(guard: Guard, arguments: Arguments) -> EndWorkResult:
    """The server half."""
    if not 0 <= arguments.within <= _MAX_WAIT:
        raise RequestError("arguments", f"within: {arguments.within:g} s is not from 0 to {_MAX_WAIT:g} s")
    wanted = frozenset(arguments.processes)
    for domain in guard.domains.values():
        # A program that has just come has work already, and is known a moment later.
        coming = await _names_there(guard, domain.clients.not_entered(), arguments.pid_namespace)
        await domain.clients.entered([process for process, named in coming.items() if named in wanted])
    found = []
    for domain in guard.domains.values():
        clients = {client.process: client for client in domain.clients.all()}
        names = await _names_there(guard, [(key, clients[key].user) for key in clients], arguments.pid_namespace)
        found += [
            _end(guard, domain, clients[process], named, arguments.within)
            for process, named in names.items()
            if named in wanted
        ]
    return EndWorkResult(tuple(await asyncio.gather(*found)))


async def _names_there(
    guard: Guard, processes: Sequence[tuple[ProcessKey, int]], pid_namespace: int | None
) -> dict[ProcessKey, ProcessKey]:
    """Return what processes are called in a pid namespace, without those that were not started in it.

    ``processes``: each with its user. One that keeps its namespace from being read in time is left out, too.
    """
    if process_tree.pid_namespace() == pid_namespace:
        return {process: process for process, _ in processes}
    found = await guard.stats.pid_namespaces(processes)
    inner = {
        process: process_tree.innermost_pid(process.pid) for process, there in found.items() if there == pid_namespace
    }
    return {process: ProcessKey(pid, process.start_ticks) for process, pid in inner.items() if pid is not None}


async def _end(guard: Guard, domain: Domain, client: Client, named: ProcessKey, within: float) -> WorkEnded:
    handle = domain.clients.handle(client.process)
    if handle is None:
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
