"""`mpsguard-ctl terminate`: end a client's GPU work the clean way, and only then, if asked, the client."""

import sys

import click

from mpsguard.cli.session import CliSession, Exit, with_session
from mpsguard.guard.control_api.messages.clients import MAX_WAIT, SIGNALS, TerminateArguments, TerminateResult
from mpsguard.guard.remedies import termination


@click.command()
@click.argument("pid", type=click.IntRange(1))
@click.option("--signal", "name", type=click.Choice(SIGNALS), help="Sent once the control daemon has answered 0.")
@click.option("--grace", type=click.FloatRange(0, MAX_WAIT), help="Seconds from that signal to SIGKILL.")
@click.option("--force", is_flag=True, help="Signal even if the GPU work may go on: the others may die of it.")
@click.option("--domain", help="Look only there.")
@with_session
def terminate(
    session: CliSession, pid: int, name: str | None, *, grace: float | None, force: bool, domain: str | None
) -> None:
    """End the GPU work of client PID by the vendor's terminate_client, without harm to the others.

    A server waits for a stopped process (SIGSTOP, a debugger), so it is not asked then: with --signal KILL or --grace
    the process is killed at once, and its lifeline keeps what its kernels need.
    """
    if name is None and (force or grace is not None):
        raise click.UsageError("--grace and --force say how to signal: they need --signal")
    arguments = TerminateArguments(pid, name, domain, grace, force, min(session.deadline, MAX_WAIT))
    # The process' end is waited for after the daemon's answer, and --deadline is for the answer.
    after = termination.SEEN_WITHIN
    if name is not None:
        after += (grace or 0.0) + termination.KILLED_WITHIN
    result = session.ask("terminate", arguments, TerminateResult, after=after)
    if session.as_json:
        session.print_json(result)
    elif result.terminated:
        signals = f", sent {' and '.join(result.signals)}" if result.signals else ""
        click.echo(f"client {pid} terminated on server {result.server}{signals}{', ended' if result.ended else ''}")
    else:
        forced = f"; sent {' and '.join(result.signals)} all the same" if result.signals else ""
        click.echo(f"client {pid} not terminated: {result.answer or 'no answer'}{forced}", err=True)
    sys.exit(Exit.OK if result.terminated else Exit.FAILED)
