"""Rows of the screen's three tables: pure functions of a snapshot."""

from collections.abc import Sequence
from typing import Final

import msgspec

from mpsguard.cli.client_cells import class_cells, container, memory_cell, pod_cell, survival_cell
from mpsguard.cli.dashboard.snapshot import Snapshot
from mpsguard.guard.control_api.messages.clients import ClientMemory, Survival, Watch
from mpsguard.guard.incident import Suspect
from mpsguard.guard.journal.records import IncidentSummary
from mpsguard.guard.model import Client, LaneReport
from mpsguard.guard.pods import ClientPod
from mpsguard.linux.times import age


class Column(msgspec.Struct, frozen=True):
    """One column of a table."""

    heading: str
    width: int
    """Characters; 0: all that the others leave."""
    from_width: int = 0
    """Width of the screen below which it is left out."""


class Row(msgspec.Struct, frozen=True):
    """One row; its key stays the same for as long as what it is about exists."""

    key: str
    cells: tuple[str, ...]


LANES: Final = (
    Column("DOMAIN", 12, 100),
    Column("LANE", 14),
    Column("STATE", 12),
    Column("FOR", 4),
    Column("CLIENTS", 7),
    Column("WAITING", 7, 90),
    Column("REASON", 0),
)
CLIENTS: Final = (
    Column("PID", 8),
    Column("UID", 6, 90),
    Column("CLASS", 10, 90),
    Column("SHARE", 5),
    Column("LIMIT", 10, 110),
    Column("MEMORY", 12),
    Column("LANE", 14, 110),
    Column("CONTAINER", 12, 130),
    Column("POD", 30, 160),
    Column("FOR", 4),
    Column("WATCHED", 7),
    Column("SURVIVES", 18, 150),
    Column("COMMAND", 0),
)
INCIDENTS: Final = (
    Column("AGO", 4),
    Column("FAULT", 8),
    Column("XIDS", 8, 90),
    Column("CONFIDENCE", 10),
    Column("VICTIMS", 7),
    Column("CULPRIT", 0),
)


def shown(columns: Sequence[Column], width: int) -> tuple[int, ...]:
    """Return the numbers of the columns that are shown on a screen of that width."""
    return tuple(number for number, column in enumerate(columns) if width >= column.from_width)


def widths(columns: Sequence[Column], width: int, padding: int) -> tuple[int, ...]:
    """Return the width of each column that is shown, ``padding`` being what a cell has besides its text."""
    kept = [columns[number] for number in shown(columns, width)]
    room = width - sum(column.width + padding for column in kept)
    return tuple(column.width or max(room, len(column.heading)) for column in kept)


def heading(snapshot: Snapshot) -> str:
    """Return the first line: the guard's health, and what is wrong."""
    status = snapshot.status
    if status is None:
        return f"no guard: {snapshot.failure}"
    problems = "; ".join(status.problems)
    said = f"mpsguard {status.version}: {status.health.value} for {age(status.started_at)}"
    return f"{said}; {problems}" if problems else said


def lanes(snapshot: Snapshot) -> tuple[Row, ...]:
    """Return a row for each lane."""
    if snapshot.status is None:
        return ()
    rows = []
    for domain in snapshot.status.domains:
        rows.append(_lane(domain.name, domain.lane, domain.clients, str(domain.parked)))
        if domain.spare is not None:
            rows.append(_lane(domain.name, domain.spare, domain.spare_clients, "-"))
    return tuple(rows)


def clients(snapshot: Snapshot) -> tuple[Row, ...]:
    """Return a row for each client, in the order in which they came."""
    answer = snapshot.clients
    return tuple(
        _client(client, watch, answer.pod_of(number), answer.memory_of(number), answer.survival_of(number))
        for number, (client, watch) in enumerate(zip(answer.clients, answer.watches, strict=True))
    )


def incidents(snapshot: Snapshot) -> tuple[Row, ...]:
    """Return a row for each incident, newest first."""
    return tuple(_incident(incident) for incident in snapshot.incidents.incidents)


def _lane(domain: str, lane: LaneReport, clients: int, waiting: str) -> Row:
    return Row(lane.name, (domain, lane.name, lane.state.value, age(lane.since), str(clients), waiting, lane.reason))


def _client(
    client: Client, watch: Watch, pod: ClientPod | None, memory: ClientMemory | None, survival: Survival | None
) -> Row:
    given = class_cells(client)
    cells = (
        str(client.process.pid),
        str(client.uid),
        given.name,
        given.share,
        given.limits,
        memory_cell(memory),
        client.lane,
        container(client),
        pod_cell(pod),
        age(client.connected_at),
        watch.state.value,
        survival_cell(survival),
        _short(client.command),
    )
    return Row(str(client.process), cells)


def _short(command: str) -> str:
    """Return a command line without the directories of its program, which would fill a narrow screen."""
    if not command.startswith("/"):
        return command
    program, blank, arguments = command.partition(" ")
    return f"{program.rpartition('/')[2]}{blank}{arguments}"


def _incident(incident: IncidentSummary) -> Row:
    cells = (
        age(incident.began),
        incident.fault_class.value,
        ",".join(map(str, incident.xids)) or "-",
        incident.confidence.value,
        str(len([each for each in incident.victims if each != incident.culprit])),
        _culprit(incident.culprit, _short(incident.culprit_command or ""), incident.candidates),
    )
    return Row(incident.id, cells)


def _culprit(culprit: Suspect | None, command: str, candidates: Sequence[Suspect]) -> str:
    if culprit is not None:
        return f"{culprit.pid} {command}".strip()
    return f"one of {len(candidates)}" if candidates else "not known"
