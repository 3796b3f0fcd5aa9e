"""One domain at work: its public directories, its lanes, its brokers, its clients."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from mpsguard.guard import config
from mpsguard.guard.broker.broker import Broker
from mpsguard.guard.broker.class_admission import ClassAdmission
from mpsguard.guard.broker.client_table import ClientTable
from mpsguard.guard.broker.endpoint import Endpoint
from mpsguard.guard.broker.lane_router import ActiveLaneRouter, LaneRouter, SecondLaneRouter, StandbyLaneRouter
from mpsguard.guard.broker.lowered_shares import ClassCeilings, ProgramShares
from mpsguard.guard.broker.standby_places import StandbyPlaces
from mpsguard.guard.broker.unbrokered import Adoption, Reconciliation
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.daemon.lane_specs import lane_count, lane_spec
from mpsguard.guard.evidence import ProcessEnded
from mpsguard.guard.incidents.domain_view import DomainView
from mpsguard.guard.incidents.lane_sentinel import LaneSentinel
from mpsguard.guard.incidents.second_driver_watch import SecondDriverWatch
from mpsguard.guard.incidents.sensor_hub import SensorHub
from mpsguard.guard.incidents.unheeded_fault import UnheededFaults
from mpsguard.guard.lanes.command import Command, CommandFailedError
from mpsguard.guard.lanes.control_process import Launcher
from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.lanes.lane_set import LaneSet
from mpsguard.guard.lanes.settings import SettingsStore
from mpsguard.guard.metrics.registry import Metrics
from mpsguard.guard.model import Client, LaneReport
from mpsguard.guard.remedies.held_lifelines import Hold, hold_for
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.stat_reader import StatReader
from mpsguard.linux.tasks import Owner, beside


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
        self._adoption = Adoption(
            self.clients,
            stats,
            settings=lambda: self.settings,
            held=lambda: [each.process for each in self._sensors.lifelines.held()],
            recalled=lambda client: self.seconds.drivers.recalled(client),  # noqa: PLW0108 - there later
        )
        self._sensors: SensorHub
        """Set by `run`; no client comes before."""
        self.writers: Callable[[], Collection[ProcessKey]] = tuple
        """The processes that write a session; set by the guard once there is a vault."""
        self._metrics = metrics
        self._events = events
        self._launcher = launcher
        self._tasks = Owner()
        self._sentinels: dict[str, LaneSentinel] = {}
        self._reconciliations: dict[str, Reconciliation] = {}
        self._unsettled: set[str] = set()
        self.settled = asyncio.Event()
        """Set once every lane has been adopted or started, or could not be."""
        metrics.domain(self.name, *(each.name for each in settings.classes))
        state = Path(guard.state_directory) / "lanes"
        made = [self._make_lane(guard, binary, state, index) for index in range(lane_count(settings))]
        self.lanes = LaneSet(made, state / f"{self.name}.active.json")
        self.view = DomainView(settings, self.clients, self.lanes)
        self.ceilings = ClassCeilings()
        self.shares = ProgramShares(state / f"{self.name}.shares.json")
        public, path = Path(settings.pipe_directory), state / f"{self.name}.second.json"
        self.seconds = SecondDriverWatch(self.view, self.shares, self.ceilings, path, events=events, metrics=metrics)
        self._unheeded = UnheededFaults(self.view, events)
        active = ActiveLaneRouter(self.lanes, self.clients, self.seconds.drivers)
        locks = Path(guard.run_directory)
        endpoints = [Endpoint(public, self._make_broker(active), config.public_lock(locks, self.name))]
        if settings.standby:
            places = StandbyPlaces(self.name, self._standby_lane, self.clients, self._known_writers, events)
            router = StandbyLaneRouter(self.lanes, self.clients, self.seconds.drivers, self.shares, places)
            standby = self._make_broker(router, standbys=True)
            path = config.standby_directory(settings.pipe_directory)
            endpoints.append(Endpoint(path, standby, locks / f"{self.name}.standby.lock"))
            if settings.second_driver != "off":
                second = self._make_broker(SecondLaneRouter(self.lanes, self.seconds.drivers))
                path = config.second_directory(settings.pipe_directory)
                lock, ahead = locks / f"{self.name}.second.lock", self.seconds.drivers.ahead_mode
                endpoints.append(Endpoint(path, second, lock, ahead=ahead, page=self.seconds.moves.page))
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
        self._reconciliations[spec.name] = Reconciliation(lane, self._known_pids, self._adoption.adopt, self._stats)
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

    def open(self, given: dict[str, socket.socket]) -> None:
        """Take the public directories; sockets of ours that were handed over are taken out of ``given``.

        Raises PublicDirectoryError.
        """
        for endpoint in self.endpoints:
            endpoint.directory.open(given)
        self.clients.open()

    def close(self) -> None:
        """Give back what `open` took; safe to call twice."""
        self.clients.close()
        for endpoint in self.endpoints:
            endpoint.directory.close()

    async def run(self, sensors: SensorHub) -> None:
        """Serve until cancelled, or until a lane was told to quit; then the public directories are given back.

        ``sensors`` are told of what happens here.
        """
        self._sensors = sensors
        self.seconds.open(sensors)
        async with AsyncExitStack() as at_end:
            at_end.callback(self.close)
            at_end.push_async_callback(self.seconds.close)
            at_end.push_async_callback(self._tasks.end)
            if self.settings.sentinel:
                for lane in self.lanes.all:
                    self._post_sentinel(lane, sensors)
            for name, each in self._reconciliations.items():
                self._tasks.keep(f"reconciliation of {name}", each.run)
            self._tasks.keep(f"second drivers of {self.name}", self.seconds.run)
            self._tasks.keep(f"unheeded faults of {self.name}", lambda: self._unheeded.run(sensors))
            lanes = await at_end.enter_async_context(beside(*(lane.run() for lane in self.lanes.all)))
            running = dict(zip(lanes, self.lanes.all, strict=True))
            at_end.push_async_callback(self._close_brokers)
            for endpoint in self.endpoints:
                endpoint.broker.open()
                endpoint.serve()
            done, rest = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await asyncio.gather(*(self._quit(running[task]) for task in rest), *rest)
            self._events.publish("domain_ended", self.name)

    def quits(self) -> bool:
        """Return whether a lane was told to quit: the domain ends with its clients. On any thread."""
        return any(lane.quitting.is_set() for lane in self.lanes.all)

    async def _close_brokers(self) -> None:
        """Close all at once: each gives its handshakes in progress a while."""
        closed = [endpoint.broker.close() for endpoint in self.endpoints]
        for outcome in await asyncio.gather(*closed, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

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

    def _post_sentinel(self, lane: Lane, sensors: SensorHub) -> None:
        name = lane.spec.name
        sentinel = self._sentinels[name] = LaneSentinel(
            lane,
            lambda: sum(client.lane == name for client in self.clients.all()),
            sensors.sentinel_dumped,
            lambda kind, data: self._events.publish(kind, self.name, lane=name, **data),
        )
        sensors.sentinel_stands(name, sentinel.state)
        self._tasks.keep(f"sentinel {name}", sentinel.run)

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
        elif kind == "server_lost":
            self._metrics.servers_lost.labels(self.name, name).inc()
        if kind in ("lane_adopted", "lane_started"):
            self._sensors.lane_began(lane.report)
        elif kind == "lane_state":
            self._sensors.lane_changed(lane.report)
            self.seconds.lane_changed(lane.report)
            self._unheeded.lane_changed()
        if name in self._sentinels:
            self._sentinels[name].look()
        if kind == "lane_settled" and data["adopted"]:
            self._tasks.spawn(self._adopt_clients(lane))
        elif kind in ("lane_settled", "lane_start_failed", "lane_foreign"):
            self._has_settled(name)
        self._show(lane.report)

    def _has_settled(self, lane: str) -> None:
        self._unsettled.discard(lane)
        if not self._unsettled and not self.settled.is_set():
            self.settled.set()
            self.seconds.drivers.settled()

    async def _adopt_clients(self, lane: Lane) -> None:
        """Find the clients that came before this guard did: the control daemon lists them, /proc describes them."""
        try:
            await self._adoption.adopt_all(lane)
        except (CommandFailedError, OSError) as error:
            self._events.publish("clients_not_adopted", self.name, detail=str(error))
        finally:
            self._has_settled(lane.spec.name)

    def client_came(self, client: Client, handle: ProcessHandle) -> None:
        """See `clients.Audience`."""
        self._sensors.client_came(client, handle)
        if (lane := self.lanes.named(client.lane)) is not None:
            lane.service.client_came(client.process.pid, client.user)
        self.seconds.client_came(client, handle)
        self._population_changed()
        if client.unbrokered:
            self._metrics.unbrokered.labels(self.name).inc()
        came = "client_unbrokered" if client.unbrokered else "client_connected"
        self._events.publish(
            "client_adopted" if client.adopted else came,
            self.name,
            user=client.user,
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
        for name, each in self._reconciliations.items():
            if name in client.lanes:
                each.client_ended(client.process.pid)
        for each_lane in filter(None, map(self.lanes.named, client.lanes)):
            each_lane.service.client_left(client.process.pid)
        servers = tuple(server.process.pid for server in lane.report.servers) if lane is not None else ()
        self._sensors.client_ended(client, handle, servers, self._hold_for)
        self.seconds.client_ended(client)
        self._population_changed()
        pid, start_ticks = client.process.pid, client.process.start_ticks
        self._events.publish("client_ended", self.name, user=client.user, pid=pid, start_ticks=start_ticks)

    def _hold_for(self, ended: ProcessEnded) -> Hold:
        holds = self.settings.lifelines
        return hold_for(ended, crash_hold=holds.crash_hold, exit_hold=holds.exit_hold, beyond=holds.overdue == "keep")

    def _show(self, report: LaneReport) -> None:
        self._metrics.set_lane_state(self.name, report.name, report.state)
        self._metrics.lane_starts.labels(self.name, report.name).set(report.starts)
        self._metrics.lane_doubted.labels(self.name, report.name).set(bool(report.doubt))
