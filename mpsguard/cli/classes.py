"""`mpsguard-ctl classes`: the service classes and how many clients each has."""

import click

from mpsguard.cli.session import CliSession, with_session
from mpsguard.cli.tables import show_table
from mpsguard.guard.config import ServiceClass
from mpsguard.guard.control_api.messages.lanes import ClassesArguments, ClassList, ObjectiveView

_MOST_NAMED = 5
"""Processes that a line names."""


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
