"""The commands of the control API, by name."""

from collections.abc import Mapping
from typing import Any, Final

from mpsguard.guard.control_api.server import Handler
from mpsguard.guard.daemon.commands import clients, guard, incidents, lanes, vault
from mpsguard.guard.daemon.guard import Guard

HANDLERS: Final[Mapping[str, Handler[Guard, Any]]] = {
    handler.name: handler for subject in (guard, clients, lanes, incidents, vault) for handler in subject.HANDLERS
}
