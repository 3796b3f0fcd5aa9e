"""`mpsguard-ctl incidents`: what went wrong so far, a line each."""

import click

from mpsguard.cli.session import CliSession, with_session
from mpsguard.cli.tables import show_table
from mpsguard.guard.control_api.messages.incidents import IncidentList, IncidentsArguments
from mpsguard.guard.journal.records import IncidentSummary
from mpsguard.linux.times import clock


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
