"""Commands about clients: list, end and release them, and note their pods."""

import asyncio
import signal
import time
from collections.abc import Sequence
from typing import Any, Final

from mpsguard.guard.control_api.messages.clients import (
    MAX_WAIT,
    SIGNALS,
    ClientList,
    ClientMemory,
    ClientMoved,
    ClientsArguments,
    EndWorkArguments,
    EndWorkResult,
    LifelineList,
    LifelinesArguments,
    MoveClientArguments,
    PodsArguments,
    PodsNoted,
    TerminateArguments,
    TerminateResult,
    Watch,
    WorkEnded,
)
from mpsguard.guard.control_api.protocol import RequestError
from mpsguard.guard.control_api.server import Handler
from mpsguard.guard.daemon.domain import Domain
from mpsguard.guard.daemon.guard import Guard
from mpsguard.guard.incidents.pipeline import IncidentPipeline
from mpsguard.guard.incidents.program_moves import MoveError
from mpsguard.guard.lanes.command import CommandFailedError
from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.model import Client, Work
from mpsguard.guard.pods import PodTable
from mpsguard.guard.remedies import termination
from mpsguard.guard.remedies.termination import Termination, TerminationPlan
from mpsguard.guard.sensors.uvm_client import Attachment
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import process_tree
from mpsguard.linux.processes.process import ProcessHandle


async def _clients(guard: Guard, arguments: ClientsArguments) -> ClientList:
    domains = guard.domains.values() if arguments.domain is None else [guard.domain(arguments.domain)]
    found = tuple(client for domain in domains for client in domain.clients.all())
    attachments = guard.pipeline.sensors.attachments() if guard.pipeline else {}
    sensor = guard.pipeline is not None and guard.pipeline.sensors.watches()
    return ClientList(
        found,
        tuple(_watch(client, attachments.get(client.process), sensor) for client in found),
        tuple(guard.pods.of(client) for client in found),
        _memory(guard.pipeline, found) if guard.pipeline else (),
        tuple(guard.domains[client.domain].seconds.survival(client) for client in found),
    )


def _memory(pipeline: IncidentPipeline, clients: tuple[Client, ...]) -> tuple[ClientMemory | None, ...]:
    sizes = pipeline.sensors.client_memory_of_all_gpus()
    exceeding = pipeline.memory.exceeding()
    return tuple(
        ClientMemory(sizes[client.process.pid], client.process in exceeding) if client.process.pid in sizes else None
        for client in clients
    )


def _watch(client: Client, attachment: Attachment | None, sensor: bool) -> Watch:
    if attachment is None:
        return Watch(client.process.pid, False, "unknown to the uvm sensor", sensor=sensor)
    return Watch(client.process.pid, attachment.attached, attachment.reason, attachment.unwatchable, sensor)


async def _move(guard: Guard, arguments: MoveClientArguments) -> ClientMoved:
    domains = list(guard.domains.values()) if arguments.domain is None else [guard.domain(arguments.domain)]
    pid, lane, share = arguments.pid, arguments.lane, arguments.share
    for domain in domains:
        if not any(client.process.pid == pid for client in domain.clients.all()):
            continue
        try:
            return await domain.seconds.moves.move(pid, lane, share, let_go=arguments.let_go)
        except MoveError as error:
            raise RequestError("failed", str(error)) from None
    raise RequestError("failed", f"process {pid} is no client of this guard")


async def _terminate(guard: Guard, arguments: TerminateArguments) -> TerminateResult:
    """Send `terminate_client` and await its answer; never signal a client that still has work."""
    if arguments.signal is not None and arguments.signal not in SIGNALS:
        raise RequestError("arguments", f"signal {arguments.signal!r} is none of {', '.join(SIGNALS)}")
    for name, value in (("grace", arguments.grace), ("answer_within", arguments.answer_within)):
        if value is not None and not 0 <= value <= MAX_WAIT:
            raise RequestError("arguments", f"{name}: {value:g} s is not from 0 to {MAX_WAIT:g} s")
    if arguments.signal is None and (arguments.force or arguments.grace is not None):
        raise RequestError("arguments", "force and grace say how to signal: they need a signal")
    plan = TerminationPlan(
        answer_within=arguments.answer_within,
        first=signal.Signals[f"SIG{arguments.signal}"] if arguments.signal else None,
        grace=arguments.grace,
        force=arguments.force,
    )
    domains = list(guard.domains.values()) if arguments.domain is None else [guard.domain(arguments.domain)]
    try:
        # Held before the work ends: the signal must not reach a successor of the pid.
        with await _hold(guard, domains, arguments.pid) as client:
            domain, lanes = await _where(client, domains)
            result = await termination.terminate(lanes, client, plan)
            kind, data = result.event()
            guard.events.publish(kind, domain.name, **data)
            return _outcome(result)
    except ProcessLookupError:
        raise RequestError("failed", f"there is no process {arguments.pid}: it has ended, or never was") from None
    except (CommandFailedError, TimeoutError) as error:
        raise RequestError("failed", str(error)) from None


async def _hold(guard: Guard, domains: Sequence[Domain], pid: int) -> ProcessHandle:
    """Hold a process; of a client the start time is known, and need not be read."""
    known = (domain.clients.with_pid(pid) for domain in domains)
    return next((handle for handle in known if handle is not None), None) or await guard.stats.hold(pid)


async def _where(client: ProcessHandle, domains: Sequence[Domain]) -> tuple[Domain, tuple[Lane, ...]]:
    """Return the process's domain and lanes: as the guard knows, or servers say. No other process is ever signalled."""
    for domain in domains:
        if domain.clients.get(client.key) is not None:
            return domain, domain.view.lanes_of(client.key)
    for domain in domains:
        lanes = [lane for lane in domain.lanes.all if client.key.pid in await lane.clients()]
        if lanes and client.alive():
            return domain, tuple(lanes)
    raise RequestError("failed", f"process {client.key.pid} is no client of any lane")


def _outcome(result: Termination) -> TerminateResult:
    end = result.end
    return TerminateResult(
        pid=result.pid,
        server=end.server,
        answer=end.answer,
        terminated=result.done(),
        signalled=bool(result.signals),
        work=end.work,
        signals=result.signals,
        ended=result.ended,
    )


async def _end_work(guard: Guard, arguments: EndWorkArguments) -> EndWorkResult:
    """End the GPU work of those of some processes that are clients, for `mpsguard run`.

    The asker names processes as it sees them, in its own pid namespace, which may be a container's. A process of a
    namespace nested in that one is not found.
    """
    if not 0 <= arguments.within <= MAX_WAIT:
        raise RequestError("arguments", f"within: {arguments.within:g} s is not from 0 to {MAX_WAIT:g} s")
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
    lanes = domain.view.lanes_of(client.process)
    with handle:
        working = [lane for lane in lanes if not domain.lanes.has_lost_its_work(client.process, lane)]
        if not working:
            # Its server would answer only when it has let go of all its clients, which this one keeps it from.
            return WorkEnded(named, Work.NONE, "its lane has faulted, and its work has ended with it")
        end = await termination.end_work(working, handle, within)
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


async def _lifelines(guard: Guard, arguments: LifelinesArguments) -> LifelineList:
    if guard.pipeline is None:
        raise RequestError("busy", "the guard is still starting")
    lifelines = guard.pipeline.sensors.lifelines
    if arguments.release is not None and not lifelines.release_pid(arguments.release, "an operator said so"):
        raise RequestError("failed", f"no lifeline of process {arguments.release} is held")
    return LifelineList(time.monotonic(), tuple(lifelines.held()))


async def _pods(guard: Guard, arguments: PodsArguments) -> PodsNoted:
    guard.pods = PodTable(arguments.pods)
    return PodsNoted(len(arguments.pods))


HANDLERS: Final[tuple[Handler[Guard, Any], ...]] = (
    Handler("clients", ClientsArguments, _clients),
    Handler("move_client", MoveClientArguments, _move, goes_on="the move goes on: see event client_moved"),
    Handler("terminate", TerminateArguments, _terminate),
    Handler("end_work", EndWorkArguments, _end_work),
    Handler("lifelines", LifelinesArguments, _lifelines),
    Handler("pods", PodsArguments, _pods),
)
