"""The server half of `mpsguard-ctl terminate`."""

import signal
from collections.abc import Sequence

from mpsguard.guard.control_api.handler import Handler
from mpsguard.guard.control_api.messages.terminate import MAX_WAIT, SIGNALS, Arguments, TerminateResult
from mpsguard.guard.control_api.protocol import RequestError
from mpsguard.guard.daemon.domain import Domain
from mpsguard.guard.daemon.guard import Guard
from mpsguard.guard.lanes.command import CommandFailedError
from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.remedies import termination
from mpsguard.guard.remedies.termination import Termination, TerminationPlan
from mpsguard.linux.processes.process import ProcessHandle


async def serve(guard: Guard, arguments: Arguments) -> TerminateResult:
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
            domain, lane = await _where(client, domains)
            result = await termination.terminate(lane, client, plan)
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


async def _where(client: ProcessHandle, domains: Sequence[Domain]) -> tuple[Domain, Lane]:
    """Return the process's domain: as the guard knows, or a server says. No other process is ever signalled."""
    for domain in domains:
        if domain.clients.get(client.key) is not None:
            return domain, domain.lane_of(client.key)
    for domain in domains:
        for lane in domain.lanes.all:
            if client.key.pid in await lane.clients() and client.alive():
                return domain, lane
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


HANDLER = Handler("terminate", Arguments, serve)
