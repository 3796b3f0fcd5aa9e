"""One domain at work: its public directory, its lane, its broker, its clients."""

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpsguard import config
from mpsguard.daemon import clients
from mpsguard.daemon.broker import Broker
from mpsguard.daemon.clients import Clients
from mpsguard.daemon.events import EventStream
from mpsguard.daemon.metrics import Metrics
from mpsguard.daemon.public_directory import PublicDirectory
from mpsguard.daemon.senses import Senses
from mpsguard.daemon.sentinel import LaneSentinel
from mpsguard.evidence import ProcessEnded
from mpsguard.linux import procfs
from mpsguard.linux.process import ProcessHandle
from mpsguard.model import Client, LaneReport
from mpsguard.mps.command import CommandFailedError
from mpsguard.mps.lane import Lane, LaneSpec
from mpsguard.mps.settings_store import SettingsStore
from mpsguard.remedies import lifeline


def lane_spec(guard: config.Guard, domain: config.Domain, binary: str) -> LaneSpec:
    """What the active lane of ``domain`` is made of."""
    directory = config.lane_directory(guard, domain)
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


class Domain:
    """Owns everything of one domain but its lane's processes, which belong to nobody and outlive it."""

    def __init__(
        self,
        guard: config.Guard,
        settings: config.Domain,
        binary: str,
        *,
        metrics: Metrics,
        events: EventStream,
    ) -> None:
        self.name = settings.name
        self.settings = settings
        self.directory = PublicDirectory(Path(settings.pipe_directory))
        self.clients = Clients(self)
        self._senses: Senses
        """There from `run` on, and nobody comes before."""
        spec = lane_spec(guard, settings, binary)
        store = SettingsStore(Path(guard.state_directory) / "lanes" / f"{spec.name}.json", settings.settings)
        self.lane = Lane(spec, store, self._noticed)
        self.broker = Broker(self.name, settings.policy, self.lane, self.clients, metrics=metrics, events=events)
        self.settled = asyncio.Event()
        """Set once the lane has been adopted or started, or could not be."""
        self._metrics = metrics
        self._events = events
        self._adopting: asyncio.Task[None] | None = None
        self._sentinel: LaneSentinel | None = None
        metrics.domain(self.name)
        self._show(self.lane.report)

    def open(self, given: dict[str, socket.socket]) -> None:
        """Take the public directory; sockets of ours that were handed over are taken out of ``given``.

        Raises PublicDirectoryError.
        """
        self.directory.open(given)

    async def run(self, senses: Senses) -> None:
        """Serve until cancelled, or until the lane was told to quit; then the public directory is given back.

        ``senses`` are told of what happens here.
        """
        self._senses = senses
        sentinel = self._post_sentinel(senses)
        self.broker.listen(self.directory.sockets)
        try:
            await self.lane.run()
            self._events.publish("domain_ended", self.name)
        finally:
            await self.broker.close()
            for task in (self._adopting, sentinel):
                if task is not None:
                    task.cancel()
                    await asyncio.wait({task})
            self.clients.close()
            self.directory.close()

    def _post_sentinel(self, senses: Senses) -> asyncio.Task[None] | None:
        if not self.settings.sentinel:
            return None
        name = self.lane.spec.name
        self._sentinel = LaneSentinel(
            self.lane,
            lambda: len(self.clients),
            senses.sentinel_dumped,
            lambda kind, data: self._events.publish(kind, self.name, lane=name, **data),
        )
        senses.sentinel_stands(name, self._sentinel.state)
        return asyncio.create_task(self._sentinel.run(), name=f"sentinel {name}")

    def _population_changed(self) -> None:
        self._metrics.clients.labels(self.name).set(len(self.clients))
        if self._sentinel is not None:
            self._sentinel.look()

    def _noticed(self, kind: str, data: Mapping[str, Any]) -> None:
        lane = self.lane.spec.name
        self._events.publish(kind, self.name, lane=lane, **data)
        if kind == "command_timeout":
            self._metrics.command_timeouts.labels(self.name, lane).inc()
        if kind in ("lane_adopted", "lane_started"):
            self._senses.lane_began(self.lane.report)
        elif kind == "lane_state":
            self._senses.lane_changed(self.lane.report)
        if self._sentinel is not None:
            self._sentinel.look()
        if kind == "lane_settled" and data["adopted"]:
            self._adopting = asyncio.create_task(self._adopt_clients())
        elif kind in ("lane_settled", "lane_start_failed", "lane_foreign"):
            self.settled.set()
        self._show(self.lane.report)

    async def _adopt_clients(self) -> None:
        """Find the clients that came before this guard did: the control daemon lists them, /proc says who they are."""
        try:
            for pid in await self.lane.clients():
                self._adopt_client(pid)
        except CommandFailedError as error:
            self._events.publish("clients_not_adopted", self.name, detail=str(error))
        finally:
            self.settled.set()

    def _adopt_client(self, pid: int) -> None:
        try:
            handle = ProcessHandle.open(pid)
        except ProcessLookupError:
            return
        try:
            owner = procfs.uid(pid)
            client = clients.identify(handle, owner, domain=self.name, lane=self.lane.spec.name, adopted=True)
        except ProcessLookupError:
            handle.close()
            return
        self.clients.add(client, handle)

    def client_came(self, client: Client, handle: ProcessHandle) -> None:
        """See `clients.Audience`."""
        self._senses.client_came(client, handle)
        self._population_changed()
        self._events.publish(
            "client_adopted" if client.adopted else "client_connected",
            self.name,
            pid=client.process.pid,
            start_ticks=client.process.start_ticks,
            uid=client.uid,
            command=client.command,
            container=client.container,
            # A program may set the variable for itself after its start: a hint beside the proof, no proof.
            environment_agrees=client.pipe_directory == self.settings.pipe_directory,
        )

    def client_came_again(self, _: Client, handle: ProcessHandle) -> None:
        """See `clients.Audience`."""
        self._senses.client_came_again(handle)

    def client_ended(self, client: Client, handle: ProcessHandle) -> None:
        """See `clients.Audience`."""
        servers = tuple(server.process.pid for server in self.lane.report.servers)
        self._senses.client_ended(client, handle, servers, self._hold_for)
        self._population_changed()
        self._events.publish("client_ended", self.name, pid=client.process.pid, start_ticks=client.process.start_ticks)

    def _hold_for(self, ended: ProcessEnded) -> float:
        holds = self.settings.lifelines
        return lifeline.hold_for(ended, crash_hold=holds.crash_hold, exit_hold=holds.exit_hold)

    def _show(self, report: LaneReport) -> None:
        self._metrics.set_lane_state(self.name, report.name, report.state)
        self._metrics.lane_starts.labels(self.name, report.name).set(report.starts)
