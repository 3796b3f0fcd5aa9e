"""Reloading: another configuration is put in force, all of it or nothing, while the guard serves."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from mpsguard.guard import config
from mpsguard.guard.config import Config, ConfigError
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.daemon.domain import Domain
from mpsguard.guard.daemon.guard_log import LogLevel
from mpsguard.linux.systemd.notify_queue import NotifyQueue


class Reloading:
    """Owns the configuration in force."""

    def __init__(
        self,
        settings: Config,
        load: Callable[[], Config],
        *,
        domains: Mapping[str, Domain],
        log_level: LogLevel,
        events: EventStream,
        manager: NotifyQueue,
    ) -> None:
        """Create it with the ``settings`` in force; ``load``: see `Guard`."""
        self.config = settings
        self._load = load
        self._domains = domains
        self._log_level = log_level
        self._events = events
        self._manager = manager
        self._one_at_a_time = asyncio.Lock()

    async def reload(self) -> tuple[str, ...]:
        """Read the configuration again and put all of it in force; return the keys that have changed.

        Raises:
            ConfigError: it is wrong, or keys have changed that need a restart. Then everything is as before.
        """
        async with self._one_at_a_time:
            self._manager.notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
            try:
                settings = await asyncio.to_thread(self._load)
                keys = config.changed_keys(self.config, settings)
                if restart := config.needing_restart(keys):
                    raise ConfigError(f"these keys need a restart of the guard: {', '.join(restart)}")
                # From here to the end without an await, and nothing in it fails: all or nothing.
                self._log_level.set(settings.guard.log_level)
                for each in settings.domain:
                    self._domains[each.name].configure(each)
                self.config = settings
            except ConfigError as error:
                self._events.publish("reload_refused", "", detail=str(error))
                raise
            finally:
                self._manager.notify("READY=1")
            self._events.publish("reloaded", "", keys=keys)
            return keys

    async def try_to_reload(self) -> None:
        """Reload, as SIGHUP asks for it: the outcome is an event."""
        with suppress(ConfigError):
            await self.reload()
