"""`mpsguard serve` and `mpsguard check-config`: the guard itself, and its configuration."""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from mpsguard.cli.options import config_option
from mpsguard.guard import config
from mpsguard.guard.config import ConfigError
from mpsguard.guard.control_api.structured_log import structlog
from mpsguard.guard.daemon import preflight
from mpsguard.guard.daemon.commands.table import HANDLERS
from mpsguard.guard.daemon.guard import Guard, GuardStartError
from mpsguard.guard.daemon.guard_log import JournalLogger, JournalRenderer, LogLevel
from mpsguard.guard.daemon.lane_specs import launches
from mpsguard.guard.daemon.site import GuardSite
from mpsguard.guard.processes import privileges
from mpsguard.guard.processes.launcher import Launcher, LauncherEndedError
from mpsguard.linux.systemd import journald

_CONFIG_EXIT: Final = 2
_START_EXIT: Final = 1


@click.command()
@config_option
def serve(path: Path | None) -> None:
    """Serve in the foreground until SIGTERM, or until every domain was told to quit; the lanes live on."""
    try:
        settings = _load(path)
        log_level = LogLevel(settings.guard.log_level)
        _set_up_logging(settings.guard, log_level)
        with Launcher(launches(settings)) as launcher:
            # Without a driver the vendor's libraries in this process load it, which takes what is given up here.
            simulated = all(domain.simulated for domain in settings.domain)
            given = privileges.give_up() if simulated or privileges.driver_is_ready() else None
            asyncio.run(_serve(settings, launcher, given, partial(_load, path), log_level))
    except ConfigError as error:
        _fail(_CONFIG_EXIT, str(error))
    except (GuardStartError, LauncherEndedError) as error:
        _fail(_START_EXIT, str(error))


@click.command("check-config")
@config_option
@click.option(
    "--portable", is_flag=True, help="The file alone: MPS, group and directories may be missing on this machine."
)
def check_config(path: Path | None, portable: bool) -> None:
    """Check a configuration as `serve` would, and start nothing."""
    try:
        settings = config.load(path)
        if not portable:
            preflight.check(settings)
    except ConfigError as error:
        _fail(_CONFIG_EXIT, str(error))
    click.echo(f"{len(settings.domain)} domain(s): {', '.join(domain.name for domain in settings.domain)}")


_SWITCH_INTERVAL: Final = 0.0005
"""Seconds that a thread beside the event loop may keep it waiting; 5 ms, Python's default, are much of a takeover."""


def _load(path: Path | None) -> config.Config:
    settings = config.load(path)
    preflight.check(settings)
    return settings


async def _serve(
    settings: config.Config,
    launcher: Launcher,
    given: privileges.DroppedPrivileges | None,
    load: Callable[[], config.Config],
    log_level: LogLevel,
) -> None:
    sys.setswitchinterval(_SWITCH_INTERVAL)
    # What was imported and configured lives as long as the guard. Left to the collector, it would be searched now and
    # then, and no handshake goes on meanwhile.
    gc.collect()
    gc.freeze()
    stop = asyncio.Event()
    guard = Guard(settings, HANDLERS, launcher, given, site=GuardSite, load=load, log_level=log_level)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, guard.reload_soon)
    await guard.run(stop)


def _set_up_logging(guard: config.GuardConfig, log_level: LogLevel) -> None:
    """Structured lines to standard error: for people on a terminal, JSON for journals, to journald with fields."""
    console = guard.log_format == "console" or (guard.log_format == "auto" and sys.stderr.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()) if console else structlog.processors.JSONRenderer()
    )
    logger_factory: Any = structlog.PrintLoggerFactory(sys.stderr)
    if not console and journald.is_stderr():
        logger = JournalLogger(journald.JournalSocket())
        logger_factory, renderer = (lambda *_: logger), JournalRenderer(renderer)
    structlog.configure(
        processors=[
            log_level,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=logger_factory,
        cache_logger_on_first_use=True,
    )


def _fail(code: int, message: str) -> None:
    click.echo(f"mpsguard: {message}", err=True)
    sys.exit(code)
