"""The list of commands: the only place that knows them all."""

from collections.abc import Mapping
from typing import Any, Final

import click

from mpsguard.cli import (
    clients,
    doctor,
    end_work,
    events,
    incident,
    incidents,
    lanes,
    lifelines,
    metrics,
    move,
    mps,
    status,
    terminate,
    vault,
)
from mpsguard.daemon.api import Handler
from mpsguard.daemon.guard import Guard

COMMANDS: Final[tuple[click.Command, ...]] = (
    status.status,
    clients.clients,
    lanes.lanes,
    events.events,
    incidents.incidents,
    incident.incident,
    terminate.terminate,
    move.move,
    lifelines.lifelines,
    mps.mps,
    metrics.metrics,
    doctor.doctor,
    vault.vault,
)

HANDLERS: Final[Mapping[str, Handler[Guard, Any]]] = {
    handler.name: handler
    for handler in (
        status.HANDLER,
        clients.HANDLER,
        lanes.HANDLER,
        events.HANDLER,
        incidents.HANDLER,
        incident.HANDLER,
        incident.EXPORT_HANDLER,
        terminate.HANDLER,
        lifelines.HANDLER,
        end_work.HANDLER,
        move.HANDLER,
        mps.HANDLER,
        metrics.HANDLER,
        vault.HANDLER,
        vault.SHOW_HANDLER,
        vault.RELEASE_HANDLER,
    )
}
