"""One domain at work: its public directories, its lanes, its brokers, its clients."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpsguard import config
from mpsguard.broker import classification, client_table
from mpsguard.broker.broker import Broker
from mpsguard.broker.class_admission import ClassAdmission
from mpsguard.broker.class_ceilings import ClassCeilings
from mpsguard.broker.client_table import ClientTable
from mpsguard.broker.endpoint import Endpoint
from mpsguard.broker.lane_router import ActiveLaneRouter, LaneRouter, StandbyLaneRouter
from mpsguard.broker.program_shares import ProgramShares
from mpsguard.broker.standby_places import StandbyPlaces
from mpsguard.broker.unbrokered import Reconciliation, is_anothers
from mpsguard.control_api.event_stream import EventStream
from mpsguard.evidence import ProcessEnded
from mpsguard.incidents.domain_view import DomainView
from mpsguard.incidents.lane_sentinel import LaneSentinel
from mpsguard.incidents.sensor_hub import SensorHub
from mpsguard.lanes.command import Command, CommandFailedError
from mpsguard.lanes.control_process import Launch, Launcher
from mpsguard.lanes.lane import Lane, LaneSpec
from mpsguard.lanes.lane_set import LaneSet
from mpsguard.lanes.settings_store import SettingsStore
from mpsguard.linux.processes import procfs
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.process_reader import Told
from mpsguard.linux.processes.stat_reader import StatReader
from mpsguard.metrics.registry import Metrics
from mpsguard.model import Client, LaneReport, ProcessKey
from mpsguard.remedies import lifeline
from mpsguard.tasks import TaskSet


def lane_spec(guard: config.GuardConfig, domain: config.DomainConfig, binary: str, index: int) -> LaneSpec:
    """What a lane of ``domain`` is made of."""
    directory = config.lane_directory(guard, domain, index)
    policy = domain.policy
    return LaneSpec(
        name=directory.name,
        domain=domain.name,
        pipe_directory=directory / "pipe",
        log_directory=Path(guard.log_directory) / directory.name,
        control_binary=binary,
        multiuser=domain.multiuser,
        gpus=domain.gpus,
        command_deadline=policy.command_deadline,
        start_deadline=policy.start_deadline,
        check_interval=policy.check_interval,
        restart_burst=policy.restart_burst,
        restart_window=policy.restart_window,
    )


def launches(settings: config.Config) -> list[Launch]:
    """Return what it takes to start each lane of every domain; raises ConfigError without a control binary."""
    return [
        lane_spec(settings.guard, domain, config.find_control_binary(domain), index).launch
        for domain in settings.domain
        for index in range(_lanes(domain))
    ]


def _lanes(domain: config.DomainConfig) -> int:
    return 2 if domain.standby else 1


class Domain:
    """Owns everything of one domain but its lanes' processes, which outlive it."""

    def __init__(
        self,
        guard: config.GuardConfig,
        settings: config.DomainConfig,
        binary: str,
        *,
        metrics: Metrics,
        events: EventStream,
        launcher: Launcher,
        stats: StatReader,
    ) -> None:
        self.name = settings.name
        self.settings = settings
        self._stats = stats
        self.clients = ClientTable(self, stats)
        self._sensors: SensorHub
        """Set by `run`; no client comes before."""
        self.writers: Callable[[], Collection[ProcessKey]] = tuple
        """The processes that write a session; set by the guard once there is a vault."""
        self._metrics = metrics
        self._events = events
        self._launcher = launcher
        self._adopting = TaskSet()
        self._sentinels: dict[str, LaneSentinel] = {}
        self._reconciliations: dict[str, Reconciliation] = {}
        self._unsettled: set[str] = set()
        self.settled = asyncio.Event()
        """Set once every lane has been adopted or started, or could not be."""
        metrics.domain(self.name)
        state = Path(guard.state_directory) / "lanes"
        made = [self._make_lane(guard, binary, state, index) for index in range(_lanes(settings))]
        self.lanes = LaneSet(made, state / f"{self.name}.active.json")
        self.view = DomainView(settings, self.clients, self.lanes)
        self.ceilings = ClassCeilings()
        self.shares = ProgramShares(state / f"{self.name}.shares.json")
        public = Path(settings.pipe_directory)
        active = ActiveLaneRouter(self.lanes, self.clients)
        locks = Path(guard.run_directory)
        endpoints = [Endpoint(public, self._make_broker(active), locks / f"{self.name}.public.lock")]
        if settings.standby:
            places = StandbyPlaces(self.name, self._standby_lane, self.clients, self._known_writers, events)
            router = StandbyLaneRouter(self.lanes, self.clients, self.shares, places)
            standby = self._make_broker(router, standbys=True)
            path = config.standby_directory(settings.pipe_directory)
            endpoints.append(Endpoint(path, standby, locks / f"{self.name}.standby.lock"))
        for each in settings.classes:
            path = config.class_directory(settings.pipe_directory, each.name)
            broker = self._make_broker(active, chosen=each.name)
            endpoints.append(Endpoint(path, broker, locks / f"{self.name}.class-{each.name}.lock"))
        self.endpoints = tuple(endpoints)

    def _standby_lane(self) -> str:
        return (self.lanes.spare or self.lanes.active).spec.name

    def _known_writers(self) -> Collection[ProcessKey] | None:
        return self.writers() if self.settled.is_set() else None

    def _make_broker(self, router: LaneRouter, *, chosen: str | None = None, standbys: bool = False) -> Broker:
        classes = None
        if self.settings.classes:
            classes = ClassAdmission(
                self.name,
                self.settings.classes,
                self.clients,
                chosen=chosen,
                by_variable=standbys,
                shares=self.shares,
                ceilings=self.ceilings,
                events=self._events,
            )
        return Broker(
            self.name,
            self.settings.policy,
            self.lanes,
            router,
            self.clients,
            metrics=self._metrics,
            events=self._events,
            unwatchable=self._look_if_watchable,
            classes=classes,
        )

    @property
    def _look_if_watchable(self) -> Callable[[ProcessHandle], Awaitable[str]] | None:
        return self._unwatchable if self.settings.unwatched == "refuse" else None

    def configure(self, settings: config.DomainConfig) -> None:
        """Put another configuration in force, which differs in keys of `config.changes.LIVE` alone."""
        self.settings = self.view.settings = settings
        for endpoint in self.endpoints:
            endpoint.broker.configure(settings.policy, self._look_if_watchable)

    def _make_lane(self, guard: config.GuardConfig, binary: str, state: Path, index: int) -> Lane:
        spec = lane_spec(guard, self.settings, binary, index)
        store = SettingsStore(state / f"{spec.name}.json", self.settings.settings)

        def on_notice(kind: str, data: Mapping[str, Any]) -> None:
            self._on_notice(lane, kind, data)

        levers = state / f"{spec.name}.levers.json"
        lane = Lane(spec, store, levers, on_notice, stats=self._stats, start=self._launcher)
        self._reconciliations[spec.name] = Reconciliation(lane, self._known_pids, self._found_unbrokered, self._stats)
        self._unsettled.add(spec.name)
        self._show(lane.report)
        return lane

    @property
    def lane(self) -> Lane:
        """The active one."""
        return self.lanes.active

    @property
    def broker(self) -> Broker:
        """That of the public directory."""
        return self.endpoints[0].broker

    @property
    def sockets_held(self) -> bool:
        """Whether the service manager holds the public sockets, so that clients wait while no guard runs."""
        return self.endpoints[0].directory.held

    def lane_of(self, process: ProcessKey) -> Lane:
        """See `DomainView.lane_of`."""
        return self.view.lane_of(process)

    def open(self, given: dict[str, socket.socket]) -> None:
        """Take the public directories; sockets of ours that were handed over are taken out of ``given``.

        Raises PublicDirectoryError.
        """
        for endpoint in self.endpoints:
            endpoint.directory.open(given)
        self.clients.open()

    def close(self) -> None:
        """Give the public directories back."""
        for endpoint in self.endpoints:
            endpoint.directory.close()

    async def run(self, sensors: SensorHub) -> None:
        """Serve until cancelled, or until a lane was told to quit; then the public directories are given back.

        ``sensors`` are told of what happens here.
        """
        self._sensors = sensors
        sentinels = [self._post_sentinel(lane, sensors) for lane in self.lanes.all] if self.settings.sentinel else []
        for endpoint in self.endpoints:
            endpoint.broker.listen(endpoint.directory.sockets)
        looking = [asyncio.create_task(each.run()) for each in self._reconciliations.values()]
        running = {asyncio.create_task(lane.run(), name=lane.spec.name): lane for lane in self.lanes.all}
        try:
            done, rest = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await asyncio.gather(*(self._quit(running[task]) for task in rest), *rest)
            self._events.publish("domain_ended", self.name)
        finally:
            for endpoint in self.endpoints:
                await endpoint.broker.close()
            for task in (*running, *self._adopting, *sentinels, *looking):
                task.cancel()
                await asyncio.wait({task})
            self.clients.close()
            self.close()

    def _known_pids(self) -> set[int]:
        """Of clients, of those about to be, and of what the guard itself has on its lanes."""
        sentinels = {sentinel.pid for sentinel in self._sentinels.values() if sentinel.pid is not None}
        entering = {key.pid for key in self.clients.entering}
        return {client.process.pid for client in self.clients.all()} | entering | sentinels | {os.getpid()}

    async def _quit(self, lane: Lane) -> None:
        """The domain's other lane was told to quit: this one goes with it, when its clients have gone."""
        lane.expect_quit()
        with suppress(CommandFailedError):
            await lane.ask_for(Command("quit"), None)

    def _post_sentinel(self, lane: Lane, sensors: SensorHub) -> asyncio.Task[None]:
        name = lane.spec.name
        sentinel = self._sentinels[name] = LaneSentinel(
            lane,
            lambda: sum(client.lane == name for client in self.clients.all()),
            sensors.sentinel_dumped,
            lambda kind, data: self._events.publish(kind, self.name, lane=name, **data),
        )
        sensors.sentinel_stands(name, sentinel.state)
        return asyncio.create_task(sentinel.run(), name=f"sentinel {name}")

    def _population_changed(self) -> None:
        self._metrics.clients.labels(self.name).set(len(self.clients))
        for each in self.settings.classes:
            count = sum(client.service_class == each.name for client in self.clients.all())
            self._metrics.class_clients.labels(self.name, each.name).set(count)
        for sentinel in self._sentinels.values():
            sentinel.look()

    def _on_notice(self, lane: Lane, kind: str, data: Mapping[str, Any]) -> None:
        name = lane.spec.name
        self._events.publish(kind, self.name, lane=name, **data)
        if kind == "command_timeout":
            self._metrics.command_timeouts.labels(self.name, name).inc()
        if kind in ("lane_adopted", "lane_started"):
            self._sensors.lane_began(lane.report)
        elif kind == "lane_state":
            self._sensors.lane_changed(lane.report)
        if name in self._sentinels:
            self._sentinels[name].look()
        if kind == "lane_settled" and data["adopted"]:
            self._adopting.spawn(self._adopt_clients(lane))
        elif kind in ("lane_settled", "lane_start_failed", "lane_foreign"):
            self._has_settled(name)
        self._show(lane.report)

    def _has_settled(self, lane: str) -> None:
        self._unsettled.discard(lane)
        if not self._unsettled:
            self.settled.set()

    async def _adopt_clients(self, lane: Lane) -> None:
        """Find the clients that came before this guard did: the control daemon lists them, /proc describes them."""
        try:
            for pid in await lane.clients():
                await self._adopt_client(lane, pid, adopted=True)
        except CommandFailedError as error:
            self._events.publish("clients_not_adopted", self.name, detail=str(error))
        finally:
            self._has_settled(lane.spec.name)

    async def _found_unbrokered(self, lane: Lane, pid: int) -> None:
        await self._adopt_client(lane, pid, adopted=False)

    async def _adopt_client(self, lane: Lane, pid: int, *, adopted: bool) -> None:
        """Enter a client that the control daemon lists, and that did not come to this guard."""
        try:
            handle = await self._stats.hold(pid)
        except (ProcessLookupError, TimeoutError):  # a client that cannot be read now is listed again
            return
        if is_anothers(handle.key, (held.process for held in self._sensors.lifelines.held())):
            handle.close()
            return
        try:
            handle.key = self.clients.key_now(handle.key)
            owner = procfs.uid(pid)
            told = await self.clients.read(handle.key, owner[0])
        except BaseException as error:
            handle.close()
            if isinstance(error, ProcessLookupError):
                return
            raise
        if self.clients.get(handle.key) is not None:
            handle.close()
            return
        client = client_table.identify(
            handle,
            owner,
            told,
            domain=self.name,
            lane=lane.spec.name,
            adopted=adopted,
            unbrokered=not adopted,
            service_class=self._class_before(owner, told) if adopted else None,
        )
        self.clients.add(client, handle)

    def _class_before(self, owner: tuple[int, int], told: Told) -> str | None:
        """Return the class that a guard before this one gave a client, if the configuration was the same."""
        identity = classification.Identity(*owner, told.cgroup, told.environment.get(classification.PRIORITY_VARIABLE))
        directory = told.environment.get("CUDA_MPS_PIPE_DIRECTORY")
        classes, public = self.settings.classes, self.settings.pipe_directory
        chosen = next(
            (each.name for each in classes if directory == str(config.class_directory(public, each.name))), None
        )
        if directory == str(config.standby_directory(public)):
            chosen = classification.named(classes, told.environment)
        found = classification.assign(classes, identity, chosen)
        return found.service_class.name if found.service_class is not None else None

    def client_came(self, client: Client, handle: ProcessHandle) -> None:
        """See `clients.Audience`."""
        self._sensors.client_came(client, handle)
        self._population_changed()
        if client.unbrokered:
            self._metrics.unbrokered.labels(self.name).inc()
        came = "client_unbrokered" if client.unbrokered else "client_connected"
        self._events.publish(
            "client_adopted" if client.adopted else came,
            self.name,
            pid=client.process.pid,
            start_ticks=client.process.start_ticks,
            uid=client.uid,
            command=client.command,
            container=client.container,
            service_class=client.service_class,
            # A program may set the variable for itself after its start: a hint beside the proof, no proof.
            environment_agrees=client.pipe_directory in [str(endpoint.directory.path) for endpoint in self.endpoints],
        )

    def client_came_again(self, client: Client, handle: ProcessHandle) -> None:
        """See `clients.Audience`."""
        self._sensors.client_came_again(client, handle)

    async def _unwatchable(self, handle: ProcessHandle) -> str:
        return await self._sensors.unwatchable(handle)

    def client_ended(self, client: Client, handle: ProcessHandle) -> None:
        """See `clients.Audience`."""
        lane = self.lanes.named(client.lane)
        if client.lane in self._reconciliations:
            self._reconciliations[client.lane].client_ended(client.process.pid)
        servers = tuple(server.process.pid for server in lane.report.servers) if lane is not None else ()
        self._sensors.client_ended(client, handle, servers, self._hold_for)
        self._population_changed()
        self._events.publish("client_ended", self.name, pid=client.process.pid, start_ticks=client.process.start_ticks)

    def _hold_for(self, ended: ProcessEnded) -> lifeline.Hold:
        holds = self.settings.lifelines
        return lifeline.hold_for(
            ended, crash_hold=holds.crash_hold, exit_hold=holds.exit_hold, beyond=holds.overdue == "keep"
        )

    def _show(self, report: LaneReport) -> None:
        self._metrics.set_lane_state(self.name, report.name, report.state)
        self._metrics.lane_starts.labels(self.name, report.name).set(report.starts)
