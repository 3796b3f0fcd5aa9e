"""The commands of the control API, by name."""

from collections.abc import Mapping
from typing import Any, Final

from mpsguard.guard.control_api.handler import Handler
from mpsguard.guard.daemon.commands import (
    check,
    classes,
    clients,
    end_work,
    events,
    incident,
    incidents,
    lanes,
    lifelines,
    metrics,
    move,
    mps,
    pods,
    reload,
    resize,
    status,
    terminate,
    vault,
)
from mpsguard.guard.daemon.guard import Guard

HANDLERS: Final[Mapping[str, Handler[Guard, Any]]] = {
    handler.name: handler
    for handler in (
        status.HANDLER,
        check.HANDLER,
        check.REPAIRED_HANDLER,
        clients.HANDLER,
        pods.HANDLER,
        classes.HANDLER,
        lanes.HANDLER,
        events.HANDLER,
        incidents.HANDLER,
        incident.HANDLER,
        incident.EXPORT_HANDLER,
        terminate.HANDLER,
        lifelines.HANDLER,
        end_work.HANDLER,
        move.HANDLER,
        resize.HANDLER,
        mps.HANDLER,
        reload.HANDLER,
        metrics.HANDLER,
        vault.HANDLER,
        vault.SHOW_HANDLER,
        vault.RELEASE_HANDLER,
        vault.CHECKPOINT_HANDLER,
    )
}
