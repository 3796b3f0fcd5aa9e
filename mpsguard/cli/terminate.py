"""`mpsguard-ctl terminate`: end a client's GPU work the clean way, and only then, if asked, the client."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from mpsguard.cli.session import Exit, Session, with_session
from mpsguard.control_api.handler import Handler
from mpsguard.control_api.protocol import RequestError
from mpsguard.lanes.command import CommandFailedError
from mpsguard.linux.process import ProcessHandle
from mpsguard.remedies import termination
from mpsguard.remedies.termination import Termination, TerminationPlan, Work

if TYPE_CHECKING:
    from mpsguard.control_api.event_stream import EventStream
    from mpsguard.daemon.domain import Domain
    from mpsguard.daemon.guard import Guard
    from mpsguard.lanes.lane import Lane

_SIGNALS = ("TERM", "INT", "HUP", "QUIT", "KILL")

_ANSWER_WITHIN = 5.0
"""Seconds the control daemon gets where the asker says nothing."""

_MAX_WAIT = 300.0


class Arguments(msgspec.Struct):
    """Whom, and what after; times in seconds."""

    pid: int
    signal: str | None = None
    domain: str | None = None
    grace: float | None = None
    """After the signal: until SIGKILL."""
    force: bool = False
    answer_within: float = _ANSWER_WITHIN


class Outcome(msgspec.Struct, frozen=True):
    """What came of it."""

    pid: int
    server: int | None
    answer: str
    """The control daemon's own words; "0" is success. Or why it said nothing."""
    terminated: bool
    signalled: bool
    work: Work
    signals: tuple[str, ...]
    ended: bool
    """Whether the process has ended."""


async def serve(guard: Guard, arguments: Arguments) -> Outcome:
    """The server half: `terminate_client`, its answer awaited; never a signal to a client whose work goes on."""
    if arguments.signal is not None and arguments.signal not in _SIGNALS:
        raise RequestError("arguments", f"signal {arguments.signal!r} is none of {', '.join(_SIGNALS)}")
    for name, value in (("grace", arguments.grace), ("answer_within", arguments.answer_within)):
        if value is not None and not 0 <= value <= _MAX_WAIT:
            raise RequestError("arguments", f"{name}: {value:g} s is not from 0 to {_MAX_WAIT:g} s")
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
        with ProcessHandle.open(arguments.pid) as client:
            domain, lane = await _where(client, domains)
            result = await termination.terminate(lane, client, plan)
            _tell(guard.events, domain.name, result)
            return _outcome(result)
    except ProcessLookupError:
        raise RequestError("failed", f"there is no process {arguments.pid}: it has ended, or never was") from None
    except CommandFailedError as error:
        raise RequestError("failed", str(error)) from None


async def _where(client: ProcessHandle, domains: Sequence[Domain]) -> tuple[Domain, Lane]:
    """Whose client the process is: as the guard knows, or a server says. Nobody else is ever signalled."""
    for domain in domains:
        if domain.clients.get(client.key) is not None:
            return domain, domain.lane_of(client.key)
    for domain in domains:
        for lane in domain.lanes.all:
            if client.key.pid in await lane.clients() and client.alive():
                return domain, lane
    raise RequestError("failed", f"process {client.key.pid} is no client of any lane")


def _tell(events: EventStream, domain: str, result: Termination) -> None:
    events.publish(
        "client_terminated" if result.end.work is Work.ENDED else "client_not_terminated",
        domain,
        pid=result.pid,
        server=result.end.server,
        answer=result.end.answer,
        signals=list(result.signals),
        ended=result.ended,
    )


def _outcome(result: Termination) -> Outcome:
    end = result.end
    return Outcome(
        pid=result.pid,
        server=end.server,
        answer=end.answer,
        terminated=end.work is Work.ENDED,
        signalled=bool(result.signals),
        work=end.work,
        signals=result.signals,
        ended=result.ended,
    )


HANDLER = Handler("terminate", Arguments, serve)


@click.command()
@click.argument("pid", type=click.IntRange(1))
@click.option("--signal", "name", type=click.Choice(_SIGNALS), help="Sent once the control daemon has answered 0.")
@click.option("--grace", type=click.FloatRange(0, _MAX_WAIT), help="Seconds from that signal to SIGKILL.")
@click.option("--force", is_flag=True, help="Signal even if the GPU work may go on: the others may die of it.")
@click.option("--domain", help="Look only there.")
@with_session
def terminate(
    session: Session, pid: int, name: str | None, *, grace: float | None, force: bool, domain: str | None
) -> None:
    """End the GPU work of client PID by the vendor's terminate_client, without harm to the others."""
    if name is None and (force or grace is not None):
        raise click.UsageError("--grace and --force say how to signal: they need --signal")
    arguments = Arguments(pid, name, domain, grace, force, min(session.deadline, _MAX_WAIT))
    # The process' end is waited for after the daemon's answer, and --deadline is for the answer.
    after = termination.SEEN_WITHIN
    if name is not None:
        after += (grace or 0.0) + termination.KILLED_WITHIN
    result = session.ask("terminate", arguments, Outcome, after=after)
    if session.as_json:
        session.print_json(result)
    elif result.terminated:
        signals = f", sent {' and '.join(result.signals)}" if result.signals else ""
        click.echo(f"client {pid} terminated on server {result.server}{signals}{', ended' if result.ended else ''}")
    else:
        forced = f"; sent {' and '.join(result.signals)} all the same" if result.signals else ""
        click.echo(f"client {pid} not terminated: {result.answer or 'no answer'}{forced}", err=True)
    sys.exit(Exit.OK if result.terminated else Exit.FAILED)
