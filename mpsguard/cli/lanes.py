"""`mpsguard-ctl lanes`, `classes`, `move` and `mps`: the lanes, their daemons and their service classes."""

import sys

import click

from mpsguard.cli.session import CliSession, Exit, with_session
from mpsguard.cli.tables import show_table
from mpsguard.guard.config import ServiceClass
from mpsguard.guard.control_api.messages.clients import ClientMoved, MoveClientArguments
from mpsguard.guard.control_api.messages.lanes import (
    ClassesArguments,
    ClassList,
    LaneList,
    MoveArguments,
    MpsArguments,
    ObjectiveView,
    Switchover,
)
from mpsguard.guard.control_api.protocol import NoArguments
from mpsguard.guard.lanes.command import CommandReply, is_refusal
from mpsguard.guard.lanes.settings import replay_commands
from mpsguard.linux.times import age

_MOVE = 90.0
"""Seconds for a program to move: its second driver may wait for the lane, and the old one for its daemon."""
_DRAIN = 600.0
"""Seconds for all of a lane's."""
_MOST_NAMED = 5
"""Processes that a line names."""


@click.command()
@with_session
def lanes(session: CliSession) -> None:
    """List the lanes with their state, the reason for it, and the settings kept for them."""
    result = session.ask("lanes", NoArguments(), LaneList)
    if session.as_json:
        session.print_json(result)
        return
    show_table(
        session.console,
        ("LANE", "STATE", "SINCE", "CONTROL", "STARTS", "ADOPTED", "SETTINGS", "PIPE DIRECTORY", "REASON"),
        [
            (
                lane.name,
                lane.state.value,
                age(lane.since),
                lane.control.pid if lane.control else "-",
                lane.starts,
                "yes" if lane.adopted else "no",
                "; ".join(replay_commands(lane.settings)) or "-",
                lane.pipe_directory,
                lane.reason,
            )
            for lane in result.lanes
        ],
        optional=("PIPE DIRECTORY", "ADOPTED", "STARTS", "SETTINGS"),
        cut="REASON",
    )


@click.command()
@click.option("--domain", help="Only this domain's.")
@with_session
def classes(session: CliSession, domain: str | None) -> None:
    """List the service classes: what each gives, and how many clients have it."""
    result = session.ask("classes", ClassesArguments(domain), ClassList)
    if session.as_json:
        session.print_json(result)
        return
    show_table(
        session.console,
        ("CLASS", "DOMAIN", "CLIENTS", "SHARE", "PRIORITY", "MEMORY", "DIRECTORY"),
        [
            (
                f"{view.settings.name} (default)" if view.settings.default else view.settings.name,
                view.domain,
                view.clients if view.settings.max_clients is None else f"{view.clients} of {view.settings.max_clients}",
                "-" if view.settings.sm_share is None else f"{view.settings.sm_share:g} %",
                (view.settings.priority or "-").replace("_", " "),
                _memory(view.settings),
                view.directory,
            )
            for view in result.classes
        ],
        optional=("DIRECTORY", "DOMAIN"),
        cut="DIRECTORY",
    )
    for view in result.objectives:
        session.console.print(_objective(view), markup=False)


def _objective(view: ObjectiveView) -> str:
    objective = view.settings
    measured = "no requests" if view.p99_ms is None else f"{view.p99_ms:.3g} ms of {view.requests} requests"
    if view.session is not None:
        measured += f" in {view.session}"
    text = (
        f"{objective.service_class}: p99 {measured}, target {objective.p99_ms:g} ms; "
        f"would hold with {view.share:g} % for {objective.batch} ({objective.mode})"
    )
    if view.held_back_by:
        pids = ", ".join(map(str, view.held_back_by[:_MOST_NAMED]))
        more = len(view.held_back_by) - _MOST_NAMED
        others = f" and {more} more" if more > 0 else ""
        text += f"; held back by clients without a standby, which keep their share until they end: {pids}{others}"
    return text


def _memory(service_class: ServiceClass) -> str:
    return ", ".join(f"{limit} of GPU {gpu}" for gpu, limit in service_class.memory_limit.items()) or "-"


@click.command()
@click.argument("pid", required=False, type=click.IntRange(1))
@click.option("--lane", help="With PID: to which one, if there are several.")
@click.option("--domain", help="Which one, if there are several.")
@click.option("--keep-old", is_flag=True, help="With PID: do not have the old lane let go of it.")
@click.option("--close-old", is_flag=True, help="With PID: shut its old connections down (experimental).")
@with_session
def move(
    session: CliSession, *, pid: int | None, lane: str | None, domain: str | None, keep_old: bool, close_old: bool
) -> None:
    """Move the work of a domain to its other lane: a planned takeover of every session with a standby that is ready.

    Unmodified programs with a second driver follow, one of each user at a time. Sessions without a standby stay where
    they are, as do clients that have neither; new clients are brought to the lane on which the work is. Exit 3 if a
    session or such a program was left behind, or if the next guard will not know of the move.

    With PID: move an unmodified program, which needs the preload and a second driver (MPSGUARD_SECOND_DRIVER). It
    stands still for a moment, and goes on. If that fails, it stays where it is, and the exit status is 1.
    """
    if pid is not None:
        let_go = True if close_old else False if keep_old else None
        show_moved(session, MoveClientArguments(pid, lane, None, domain, let_go))
        return
    if lane is not None or keep_old:
        raise click.UsageError("--lane and --keep-old are of one program: they need its PID")
    result = session.ask("move", MoveArguments(domain), Switchover, after=_DRAIN)
    if session.as_json:
        session.print_json(result)
    else:
        for key in result.moved:
            session.console.print(f"{key} goes on on {result.to}", markup=False)
        for key in result.left:
            session.console.print(f"{key} stays on {result.lane}: no standby of it is ready elsewhere", markup=False)
        for each in result.programs:
            session.console.print(f"process {each} goes on on {result.to}", markup=False)
        for program in result.programs_left:
            session.console.print(program.why, markup=False)
        if not result.moved and not result.left and not result.programs and not result.programs_left:
            session.console.print(f"no session is written from {result.lane}", markup=False)
        if result.unsaved is not None:
            session.console.print(f"the move could not be saved: {result.unsaved}", markup=False)
            session.console.print(f"the next guard will bring new work to {result.lane}", markup=False)
    incomplete = result.left or result.programs_left or result.unsaved is not None
    sys.exit(Exit.DEGRADED if incomplete else Exit.OK)


def show_moved(session: CliSession, wanted: MoveClientArguments) -> None:
    """Ask for a move of one program, and show what came of it."""
    result = session.ask("move_client", wanted, ClientMoved, after=_MOVE)
    if session.as_json:
        session.print_json(result)
        return
    share = "" if result.share is None else f" with {result.share:g} % of the SMs"
    times = f"it stood still for {1000 * result.paused:.1f} ms (prepared in {1000 * result.prepared:.0f})"
    session.console.print(f"process {result.pid} goes on on {result.lane}{share}: {times}", markup=False)
    if result.kept:
        session.console.print(f"{result.was} has its old context still: {result.kept}", markup=False)


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--domain", help="Which domain, if there is more than one.")
@click.argument("command", nargs=-1, required=True)
@with_session
def mps(session: CliSession, domain: str | None, command: tuple[str, ...]) -> None:
    """Send COMMAND to the control daemon, as `echo COMMAND | nvidia-cuda-mps-control` would."""
    reply = session.ask("mps", MpsArguments(" ".join(command), domain), CommandReply)
    if session.as_json:
        session.print_json(reply)
    else:
        for line in reply.lines:
            click.echo(line)
    sys.exit(Exit.FAILED if is_refusal(reply) else Exit.OK)
