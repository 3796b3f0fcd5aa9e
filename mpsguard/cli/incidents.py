"""`mpsguard-ctl incidents` and `incident`: what went wrong, a line each; one told, exported or drawn."""

import os
import sys
from pathlib import Path
from typing import Final

import click
import msgspec

from mpsguard.cli.session import CliSession, Exit, with_session
from mpsguard.cli.tables import show_table
from mpsguard.guard.control_api.messages.incidents import IncidentArguments, IncidentList, IncidentsArguments
from mpsguard.guard.journal.records import Bundle, IncidentSummary, RecordedIncident
from mpsguard.guard.report import page, text
from mpsguard.guard.report.report_model import ReportModel, build_report
from mpsguard.guard.triage import catalog
from mpsguard.linux.times import clock

_WIDEST: Final = 120
"""Columns of a report on a terminal: longer lines are hard to read."""

_STANDARD_OUTPUT = Path("-")


_id = click.argument("name", metavar="ID")


@click.command()
@click.option("--last", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many at most.")
@with_session
def incidents(session: CliSession, last: int) -> None:
    """List the last incidents, newest first: what it was, the culprit, and how sure that is."""
    result = session.ask("incidents", IncidentsArguments(last), IncidentList)
    if session.as_json:
        session.print_json(result)
        return
    show_table(
        session.console,
        ("ID", "WHEN", "CLASS", "XIDS", "GPU", "LANE", "CULPRIT", "CONFIDENCE", "VICTIMS"),
        [
            (
                incident.id,
                clock(incident.began),
                incident.fault_class.value,
                ",".join(map(str, incident.xids)) or "-",
                incident.gpu or "-",
                incident.lane or "-",
                _culprit(incident),
                incident.confidence.value,
                len(incident.victims),
            )
            for incident in result.incidents
        ],
        optional=("GPU", "XIDS", "LANE", "WHEN"),
        cut="CULPRIT",
    )


def _culprit(incident: IncidentSummary) -> str:
    if incident.culprit is not None:
        return f"{incident.culprit.pid} {incident.culprit_command or ''}".strip()
    return f"one of {len(incident.candidates)}" if incident.candidates else "-"


@click.group()
def incident() -> None:
    """Look at one incident: read it, take it elsewhere, or draw it.

    ID is that of `mpsguard-ctl incidents`, its beginning or end if no other has that, or `latest`.
    """


@incident.command()
@_id
@click.option("--all", "whole", is_flag=True, help="Each process and each moment, also where there are many.")
@with_session
def show(session: CliSession, name: str, whole: bool) -> None:
    """Tell incident ID: the verdict, then the timeline in milliseconds, then what to do.

    Where there are many clients, it counts them, and tells the first of many moments of a kind.
    """
    record = session.ask("incident", IncidentArguments(name), RecordedIncident)
    if session.as_json:
        session.print_json(record)
    else:
        click.echo(text.render(_told(record), min(session.console.width, _WIDEST), whole=whole), nl=False)


@incident.command()
@_id
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help="Where to; standard output without, and for -."
)
@with_session
def export(session: CliSession, name: str, output: Path | None) -> None:
    """Write incident ID as a JSON bundle: the verdict, and all evidence that triage needs to come to it again."""
    bundle = session.ask("incident_export", IncidentArguments(name), Bundle)
    if output is None:
        session.print_json(bundle)
    else:
        _write(session, bundle.record.id, output, msgspec.json.format(msgspec.json.encode(bundle), indent=1) + b"\n")


@incident.command()
@_id
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The HTML file; - for standard output.",
)
@with_session
def report(session: CliSession, name: str, output: Path) -> None:
    """Write incident ID as one HTML file with the timeline drawn; it needs no network and runs no script."""
    record = session.ask("incident", IncidentArguments(name), RecordedIncident)
    _write(session, record.id, output, page.render(_told(record)).encode())


def _told(record: RecordedIncident) -> ReportModel:
    return build_report(record, {number: catalog.lookup(number).advice for number in record.incident.xids})


def _write(session: CliSession, name: str, path: Path, content: bytes) -> None:
    """Write a whole file, or leave the one that was there; for its owner only, as command lines are in it."""
    if path == _STANDARD_OUTPUT:
        sys.stdout.buffer.write(content)
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:  # noqa: PTH123
            file.write(content)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        session.fail(Exit.FAILED, f"{path}: {error.strerror}")
    _done(session, name, path)


def _done(session: CliSession, name: str, path: Path) -> None:
    if session.as_json:
        session.print_json({"id": name, "output": str(path)})
    else:
        click.echo(f"incident {name} written to {path}")
