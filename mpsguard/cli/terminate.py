"""`mpsguard-ctl terminate`: end a client's GPU work the clean way, and only then, if asked, the client."""

import signal
import sys

import click
import msgspec

from mpsguard.cli.session import Exit, Session, with_session
from mpsguard.daemon.api import Handler
from mpsguard.daemon.guard import Guard
from mpsguard.daemon.protocol import RequestError
from mpsguard.linux import procfs
from mpsguard.linux.process import ProcessHandle
from mpsguard.mps.command import CommandFailedError

_SIGNALS = ("TERM", "INT", "HUP", "QUIT", "KILL")


class Arguments(msgspec.Struct):
    """Whom, and what after."""

    pid: int
    signal: str | None = None
    domain: str | None = None


class Outcome(msgspec.Struct, frozen=True):
    """What came of it."""

    pid: int
    server: int
    answer: str
    """The control daemon's own words; "0" is success."""
    terminated: bool
    signalled: bool


async def serve(guard: Guard, arguments: Arguments) -> Outcome:
    """The server half: `terminate_client`, its answer awaited; never a signal to a client whose work goes on."""
    if arguments.signal is not None and arguments.signal not in _SIGNALS:
        raise RequestError("arguments", f"signal {arguments.signal!r} is none of {', '.join(_SIGNALS)}")
    domains = list(guard.domains.values()) if arguments.domain is None else [guard.domain(arguments.domain)]
    try:
        for domain in domains:
            server = (await domain.lane.clients()).get(arguments.pid)
            if server is None:
                continue
            # Held before the work ends: the signal must not reach a successor of the pid.
            with ProcessHandle.open(arguments.pid) as client:
                reply = await domain.lane.ask(f"terminate_client {server} {arguments.pid}")
                terminated = bool(reply.lines) and reply.lines[-1].strip() == "0"
                guard.events.publish(
                    "client_terminated" if terminated else "client_not_terminated",
                    domain.name,
                    pid=arguments.pid,
                    server=server,
                    answer=procfs.printable(" / ".join(reply.lines)),
                )
                signalled = terminated and arguments.signal is not None and client.alive()
                if signalled:
                    client.signal(signal.Signals[f"SIG{arguments.signal}"])
                answer = procfs.printable(" / ".join(reply.lines))
                return Outcome(arguments.pid, server, answer, terminated, signalled)
    except (CommandFailedError, ProcessLookupError) as error:
        raise RequestError("failed", str(error)) from None
    raise RequestError("failed", f"process {arguments.pid} is no client of any lane")


HANDLER = Handler("terminate", Arguments, serve)


@click.command()
@click.argument("pid", type=click.IntRange(1))
@click.option("--signal", "name", type=click.Choice(_SIGNALS), help="Sent once the control daemon has answered 0.")
@click.option("--domain", help="Look only there.")
@with_session
def terminate(session: Session, pid: int, name: str | None, domain: str | None) -> None:
    """End the GPU work of client PID by the vendor's terminate_client, without harm to the others."""
    result = session.ask("terminate", Arguments(pid, name, domain), Outcome)
    if session.as_json:
        session.print_json(result)
    elif result.terminated:
        click.echo(f"client {pid} terminated on server {result.server}{', signalled' if result.signalled else ''}")
    else:
        click.echo(f"client {pid} not terminated: {result.answer or 'no answer'}", err=True)
    sys.exit(Exit.OK if result.terminated else Exit.FAILED)
