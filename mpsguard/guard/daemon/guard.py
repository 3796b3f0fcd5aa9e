"""The guard: all domains, the API, and what the service manager wants, from start to orderly end."""

import asyncio
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import mpsguard
from mpsguard.guard import config
from mpsguard.guard.broker import public_sockets
from mpsguard.guard.broker.public_directory import PublicDirectoryError
from mpsguard.guard.config import Config
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.control_api.protocol import RequestError
from mpsguard.guard.control_api.server import Api, Handler
from mpsguard.guard.daemon import own_directories, own_paths, vault_service
from mpsguard.guard.daemon.domain import Domain
from mpsguard.guard.daemon.guard_log import LogLevel
from mpsguard.guard.daemon.http_service import HttpService, Site
from mpsguard.guard.daemon.metrics_state import client_limits, gpu_uuids, state_of
from mpsguard.guard.daemon.path_watch import PathWatch
from mpsguard.guard.daemon.reloading import Reloading
from mpsguard.guard.daemon.vault_service import VaultStartError
from mpsguard.guard.incidents.failover import Failover
from mpsguard.guard.incidents.live_resize import LiveResize
from mpsguard.guard.incidents.objective_loop import ObjectiveLoop
from mpsguard.guard.incidents.pipeline import IncidentPipeline
from mpsguard.guard.incidents.remedy_executor import RemedyExecutor, RemedyLog
from mpsguard.guard.incidents.remedy_resolver import RemedyResolver
from mpsguard.guard.incidents.share_enforcer import ShareEnforcer
from mpsguard.guard.journal.journal import Journal
from mpsguard.guard.journal.records import JournalError
from mpsguard.guard.metrics.guard_state import VaultMetrics
from mpsguard.guard.metrics.registry import Metrics
from mpsguard.guard.pods import PodTable
from mpsguard.guard.processes.launcher import Launcher, LauncherEndedError
from mpsguard.guard.processes.privileges import DroppedPrivileges
from mpsguard.guard.remedies import held_lifelines
from mpsguard.linux.descriptors import fd_table
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.processes.stat_reader import StatReader
from mpsguard.linux.systemd import service_manager
from mpsguard.linux.systemd.notify_queue import NotifyQueue
from mpsguard.linux.tasks import Owner, beside
from mpsguard.vault.server.counters import Counters
from mpsguard.vault.server.early_deaths import EarlyDeath


class GuardStartError(Exception):
    """The guard cannot start; one line says why."""


class Guard:
    """Owns everything the process owns. Its lanes and clients outlive it."""

    def __init__(
        self,
        settings: Config,
        handlers: Mapping[str, Handler["Guard", Any]],
        launcher: Launcher,
        given: DroppedPrivileges | None,
        *,
        site: Callable[["Guard"], Site],
        load: Callable[[], Config],
        log_level: LogLevel,
    ) -> None:
        """Check what can be checked before anything is touched; ConfigError.

        Args:
            settings: The configuration.
            handlers: What the control API answers.
            launcher: Starts the lanes' control daemons; it belongs to the caller.
            given: The privileges that were given up; None if they were kept, for want of a driver.
            site: Makes what the HTTP service answers with.
            load: Reads the configuration again and checks it, for a reload; ConfigError. Called on a thread.
            log_level: The level of the log.
        """
        self._manager = NotifyQueue()
        self._tasks = Owner()
        """Reloads, objectives, and what tells that the guard is ready."""
        self._launcher = launcher
        self._given = given
        self.metrics = Metrics()
        self.events = EventStream()
        self.stats = StatReader()
        """Looks up processes, for all parts of the guard."""
        self.started_at = time.time()
        self.domains = {
            domain.name: Domain(
                settings.guard,
                domain,
                config.find_control_binary(domain),
                metrics=self.metrics,
                events=self.events,
                launcher=launcher.start,
                stats=self.stats,
            )
            for domain in settings.domain
        }
        self._reloading = Reloading(
            settings, load, domains=self.domains, log_level=log_level, events=self.events, manager=self._manager
        )
        self._client_limits = client_limits(self.domains.values())
        self._gpu_uuids = gpu_uuids()
        self.pods = PodTable()
        """Told by the command `pods`; empty outside of Kubernetes."""
        self._views = {name: domain.view for name, domain in self.domains.items()}
        self._handlers = handlers
        self.failover = Failover(self._views, self.events, self.metrics)
        shares = {name: domain.shares for name, domain in self.domains.items()}
        ceilings = {name: domain.ceilings for name, domain in self.domains.items()}
        self.resizing = LiveResize(self._views, shares, ceilings, self.failover, self.events)
        self.objectives = {
            name: [
                ObjectiveLoop(domain.view, objective, domain.ceilings, self.events, self.metrics)
                for objective in domain.settings.objectives
                if objective.mode != "off"
            ]
            for name, domain in self.domains.items()
        }
        self.vault = (
            vault_service.configured(settings, self.stats, self._writer_died_early) if settings.vault.enabled else None
        )
        self.metrics.registry.register(VaultMetrics(self._vault_counters))
        self.http = HttpService(
            settings.guard, self.metrics.registry, site(self), self.refresh_metrics, events=self.events
        )
        self.paths: PathWatch
        """Set by `run`, before anything asks for it."""
        self.pipeline: IncidentPipeline | None = None
        """There once the public directories are ours: no two guards write one journal."""
        self._executor: RemedyExecutor | None = None
        """There once `pipeline` is, which drives it."""

    def _writer_died_early(self, death: EarlyDeath) -> None:
        self.events.publish(
            "writer_died_early",
            "",
            session=str(death.session),
            pid=death.process.pid,
            generation=death.generation,
            seconds=death.seconds,
            in_a_row=death.in_a_row,
        )

    def refresh_metrics(self) -> None:
        """Bring up to date what is not counted as it happens."""
        self.metrics.state.state = state_of(
            self.domains.values(),
            self.pipeline,
            self.pods,
            limits=self._client_limits,
            uuids=self._gpu_uuids,
            paths=self.paths.intact,
        )

    def _vault_counters(self) -> Counters | None:
        return self.vault.vault.counters() if self.vault is not None and self.vault.is_open else None

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._reloading.config

    @property
    def journal(self) -> Journal:
        """Where incidents are kept; RequestError while there is none yet."""
        if self.pipeline is None:
            raise RequestError("busy", "the guard is still starting")
        return self.pipeline.journal

    def domain(self, name: str | None) -> Domain:
        """The domain of that name, or the only one; RequestError if there is none such or more than one."""
        if name is not None:
            if name not in self.domains:
                raise RequestError("arguments", f"no domain {name!r}; there are: {', '.join(self.domains)}")
            return self.domains[name]
        if len(self.domains) > 1:
            raise RequestError("arguments", f"which domain? there are: {', '.join(self.domains)}")
        return next(iter(self.domains.values()))

    async def reload(self) -> tuple[str, ...]:
        """See `Reloading.reload`."""
        return await self._reloading.reload()

    def reload_soon(self) -> None:
        """Reload on SIGHUP; the outcome is an event."""
        self._tasks.spawn(self._reloading.try_to_reload(), name="reload")

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set, or until every domain was told to quit. Raises GuardStartError."""
        self.events.catch_defects(asyncio.get_running_loop())
        fd_table.prepare_for_many()
        handed_over = service_manager.take_listen_fds()
        lifelines = [fd for fd, name in handed_over.items() if name.startswith(held_lifelines.NAME)]
        kept = {fd: handed_over.pop(fd) for fd in lifelines}
        bundles = vault_service.take_bundles(handed_over)
        given = public_sockets.adopt_sockets(handed_over)
        api: Api[Guard] = Api(self, self._handlers, self.config.guard.run_directory)
        owners = own_paths.PathOwners(self.domains, api, self.http, self.vault)
        paths = own_paths.all_of(self.config.guard, owners, self._manager, self.events, lambda: self.journal)
        self.paths = PathWatch(tuple(paths), self.events, self.metrics)
        async with AsyncExitStack() as at_end:
            # In reverse order, and each also where another one fails.
            at_end.callback(self._manager.close)
            at_end.callback(_close, given)
            at_end.callback(lambda: close_all(kept))
            at_end.callback(self.stats.close)
            for domain in self.domains.values():
                at_end.callback(domain.close)
            at_end.push_async_callback(self._close_pipeline)
            at_end.callback(_close, bundles)
            if self.vault is not None:
                at_end.push_async_callback(self.vault.close)
            at_end.push_async_callback(self._close_executor)
            at_end.callback(self.http.close)
            at_end.push_async_callback(api.close)
            at_end.push_async_callback(self.failover.close)
            at_end.push_async_callback(self.resizing.close)
            at_end.push_async_callback(self._tasks.end)
            self.stats.start()
            self._open(api, given)
            await self._open_vault(bundles)
            pipeline = self.pipeline
            assert pipeline is not None
            held = pipeline.sensors.lifelines
            held.adopt(kept.items(), max(domain.lifelines.crash_hold for domain in self.config.domain))
            kept.clear()
            self._pursue_objectives()
            domains = beside(*(domain.run(pipeline.sensors) for domain in self.domains.values()))
            ends = beside(
                stop.wait(),
                _all_done(await at_end.enter_async_context(domains)),
                api.run(),
                self._watchdog(),
                self._launched(),
                self.http.run(),
            )
            ending = await at_end.enter_async_context(ends)
            self._tasks.keep("the watch over paths", self.paths.run)
            self._tasks.spawn(self._tell_ready(), name="readiness")
            at_end.callback(self._manager.notify, "STOPPING=1")
            done, _ = await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def _close_executor(self) -> None:
        if self._executor is not None:
            await self._executor.close()

    async def _close_pipeline(self) -> None:
        if self.pipeline is not None:
            try:
                await self.pipeline.sensors.lifelines.drained()
            finally:
                await self.pipeline.close()

    def _open(self, api: Api["Guard"], given: dict[str, socket.socket]) -> None:
        run_directory = Path(self.config.guard.run_directory)
        try:
            own_directories.open_run(run_directory).close()
            own_directories.open_state(Path(self.config.guard.state_directory)).close()
            for domain in self.domains.values():
                domain.open(given)
                own_paths.store(domain, self._manager)
            self.pipeline = self._make_pipeline()
            api.open(self.config.guard.group)
            self.http.open()
        except (PublicDirectoryError, JournalError) as error:
            raise GuardStartError(str(error)) from None
        except LookupError:
            raise GuardStartError(f"guard.group: no group {self.config.guard.group!r} on this machine") from None
        except OSError as error:
            raise GuardStartError(f"{error.filename or run_directory}: {error.strerror}") from None
        self.events.listen(api.publish)
        self.events.publish("guard_started", "", version=mpsguard.__version__)
        if self._given is None:
            self.events.publish("privileges_kept", "", detail="the driver is not loaded, or GPUs have no device nodes")
        else:
            self.events.publish("privileges_dropped", "", **msgspec.structs.asdict(self._given))

    async def _open_vault(self, bundles: dict[str, socket.socket]) -> None:
        if self.vault is None:
            return
        try:
            await self.vault.open(bundles)
        except VaultStartError as error:
            raise GuardStartError(str(error)) from None
        self.failover.watch(self.vault.vault)
        for domain in self.domains.values():
            domain.writers = self.vault.vault.store.writers
        if self.vault.lost or self.vault.unreadable:
            self.events.publish("vault_incomplete", "", lost=self.vault.lost, unreadable=self.vault.unreadable)

    async def _launched(self) -> None:
        """Raise GuardStartError when the launcher ends: the guard cannot make another one, its successor can."""
        try:
            await self._launcher.run()
        except LauncherEndedError as error:
            raise GuardStartError(str(error)) from None

    def _pursue_objectives(self) -> None:
        """Run the loops of all objectives from now on."""
        for name, loops in self.objectives.items():
            if loops and self.vault is not None:
                vault = self.vault.vault
                domain = self.domains[name]
                enforced = {each.batch for each in domain.settings.objectives if each.mode == "enforce"}
                resize = partial(self.resizing.resize, vault)
                enforcer = ShareEnforcer(
                    domain.view, classes=enforced, ceilings=domain.ceilings, resize=resize, events=self.events
                )
                self._tasks.keep(f"shares of {name}", partial(enforcer.run, vault))
                for loop in loops:
                    self._tasks.keep(f"an objective of {name}", partial(loop.run, vault, enforcer.wake))

    def _make_pipeline(self) -> IncidentPipeline:
        path = Path(self.config.guard.state_directory) / "journal.sqlite"
        loop = asyncio.get_running_loop()

        def on_notice(kind: str, data: Mapping[str, Any]) -> None:
            # The journal speaks from its own thread.
            loop.call_soon_threadsafe(lambda: self.events.publish(kind, "", **data))

        cores = self.config.guard.core_directory
        with ExitStack() as undo:
            journal = Journal.open(path, on_notice=on_notice)
            undo.callback(journal.close, 0.0)
            self._executor = RemedyExecutor(RemedyResolver(self._views), RemedyLog(journal, self.events, self.metrics))
            pipeline = IncidentPipeline(
                journal,
                self._views,
                self.failover,
                self._executor,
                events=self.events,
                metrics=self.metrics,
                core_directory=Path(cores) if cores is not None else None,
                simulated=self.config.guard.simulated_driver,
            )
            undo.pop_all()
        return pipeline

    async def _watchdog(self) -> None:
        """Prove to the service manager that this loop still turns."""
        interval = service_manager.watchdog_interval()
        if interval is None:
            await asyncio.Event().wait()
        while True:
            self._manager.notify("WATCHDOG=1")
            await asyncio.sleep(interval or 0)

    async def _tell_ready(self) -> None:
        """Ready is when every lane was adopted or started, or could not be: the guard serves in either case."""
        for domain in self.domains.values():
            await domain.settled.wait()
        if self.vault is not None:
            self.resizing.resume(self.vault.vault)
        self._manager.notify("READY=1", f"STATUS=serving {len(self.domains)} domain(s)")
        self.events.publish("guard_ready", "")


def _close(sockets: Mapping[str, socket.socket]) -> None:
    """Close what was handed over and not taken."""
    for sock in sockets.values():
        sock.close()


async def _all_done(domains: list[asyncio.Task[None]]) -> None:
    """Return when all domains were told to quit; raise as soon as one of them fails."""
    await asyncio.gather(*domains)
