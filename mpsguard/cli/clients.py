"""`mpsguard-ctl clients`, `terminate` and `lifelines`: the clients on the GPU, ended, and those that have ended."""

import sys

import click

from mpsguard.cli.client_cells import class_cells, container, lane_cell, memory_cell, pod_cell, survival_cell
from mpsguard.cli.session import CliSession, Exit, with_session
from mpsguard.cli.tables import show_table
from mpsguard.guard.control_api.messages.clients import (
    MAX_WAIT,
    SIGNALS,
    ClientList,
    ClientsArguments,
    LifelineList,
    LifelinesArguments,
    TerminateArguments,
    TerminateResult,
)
from mpsguard.guard.model import KILLED_WITHIN, SEEN_WITHIN, Lifeline
from mpsguard.linux.times import age


@click.command()
@click.option("--domain", help="Only this domain's.")
@with_session
def clients(session: CliSession, domain: str | None) -> None:
    """List the clients: processes that came through a public pipe directory and are alive."""
    result = session.ask("clients", ClientsArguments(domain), ClientList)
    if session.as_json:
        session.print_json(result)
        return
    given = ("CLASS", "SHARE", "PRIORITY", "LIMIT", "MEMORY")
    show_table(
        session.console,
        (
            "PID",
            "UID",
            *given,
            "DOMAIN",
            "LANE",
            "AGE",
            "SEEN",
            "WATCHED",
            "SURVIVES",
            "GPUS",
            "CONTAINER",
            "POD",
            "COMMAND",
        ),
        [
            (
                client.process.pid,
                client.uid,
                *class_cells(client),
                memory_cell(result.memory_of(number)),
                client.domain,
                lane_cell(client),
                age(client.connected_at),
                "adopted" if client.adopted else "unbrokered" if client.unbrokered else "came",
                watch.state.value,
                survival_cell(result.survival_of(number)),
                client.gpus or "-",
                container(client),
                pod_cell(result.pod_of(number)),
                client.command,
            )
            for number, (client, watch) in enumerate(zip(result.clients, result.watches, strict=True))
        ],
        optional=(
            "GPUS",
            "CONTAINER",
            "SEEN",
            "DOMAIN",
            "UID",
            "MEMORY",
            "LIMIT",
            "PRIORITY",
            "SHARE",
            "CLASS",
            "POD",
            "SURVIVES",
        ),
        cut="COMMAND",
    )
    for client in result.clients:
        if client.went_over_at is not None:
            went = f"{client.process.pid} went over from {client.lane_before} to {client.lane}"
            session.console.print(f"{went} {age(client.went_over_at)} ago", markup=False)
    for watch in result.watches:
        if watch.unwatchable:
            session.console.print(f"{watch.pid} cannot be watched: {watch.reason}", markup=False)


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
    after = SEEN_WITHIN
    if name is not None:
        after += (grace or 0.0) + KILLED_WITHIN
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


def _at_most(held: Lifeline) -> str:
    seconds = f"{held.until - held.since:.1f} s"
    return f"{seconds}, then until the GPUs are idle" if held.beyond else seconds


@click.command()
@click.option(
    "--release",
    type=click.IntRange(1),
    metavar="PID",
    help="Let go of an ended client now. If its kernel still runs, all clients of its lane end.",
)
@with_session
def lifelines(session: CliSession, release: int | None) -> None:
    """List what is held of clients that have ended, so that their kernels end without harm to the others."""
    result = session.ask("lifelines", LifelinesArguments(release), LifelineList)
    if session.as_json:
        session.print_json(result)
        return
    show_table(
        session.console,
        ("PID", "HELD FOR", "AT MOST"),
        [(held.pid, f"{result.now - held.since:.1f} s", _at_most(held)) for held in result.lifelines],
        cut="AT MOST",
    )
