"""The level of the guard's log, which a reload can change."""

import logging
from collections.abc import MutableMapping
from typing import Any

from mpsguard.guard.control_api.structured_log import structlog


class LogLevel:
    """Processor for structlog that drops what is below the level."""

    def __init__(self, level: str) -> None:
        self.set(level)

    def set(self, level: str) -> None:
        """Keep what is at least ``level``: debug, info, warning or error."""
        self._least = logging.getLevelNamesMapping()[level.upper()]

    def __call__(self, _: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Pass the event on, or raise DropEvent."""
        if logging.getLevelNamesMapping().get(method.upper(), logging.ERROR) < self._least:
            raise structlog.DropEvent
        return event
