"""The sensor hub: all sensors, told of clients and lanes, with the lifelines that two of them hold."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from mpsguard.guard.evidence import ClientCame, Evidence, LaneChanged, ProcessEnded, Source, Trust
from mpsguard.guard.model import Client, LaneReport, Notify
from mpsguard.guard.remedies.held_lifelines import Hold, Lifelines
from mpsguard.guard.sensors.daemon_logs import DaemonLogSensor
from mpsguard.guard.sensors.gpu_core import GpuCore
from mpsguard.guard.sensors.kernel_log import KernelLogSensor
from mpsguard.guard.sensors.kmod import KmodSensor
from mpsguard.guard.sensors.nvml import NvmlSensor
from mpsguard.guard.sensors.nvml_device import GpuReading, MemoryReading
from mpsguard.guard.sensors.process_ends import ProcessEndsSensor
from mpsguard.guard.sensors.sensor import Sensor, SensorSetup, SensorState, registered
from mpsguard.guard.sensors.sm_errors import SmErrorSensor
from mpsguard.guard.sensors.uvm import UvmSensor
from mpsguard.guard.sensors.uvm_client import Attachment
from mpsguard.linux.files.log_tail import LogTail
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes.process import ProcessHandle

_LOGS: Final = ((Source.SERVER_LOG, "server.log"), (Source.CONTROL_LOG, "control.log"))

_ENTERED_WITHIN: Final = 5.0
"""Seconds from a client's connection until it is entered, at most: its entries are read with a deadline."""

_RECENT: Final = 1.0
"""Seconds that the sensors' states count as recent: some look at the driver when they are asked."""

S = TypeVar("S", bound=Sensor)


class SensorHub:
    """Owns the sensors. Made inside a running event loop; all evidence goes to ``on_evidence``."""

    def __init__(
        self,
        on_evidence: Callable[[Evidence], None],
        *,
        kernel_log_after: int | None,
        contained_after: int | None,
        core_directory: Path | None,
        on_lifeline: Notify,
        on_attachment: Callable[[Attachment], None],
        simulated: bool,
    ) -> None:
        """Open all sensors.

        Args:
            on_evidence: Takes each piece of evidence, in the event loop.
            kernel_log_after: See `KernelLogSensor`.
            contained_after: See `KmodSensor`.
            core_directory: See `CoreDirectory`.
            on_lifeline: See `Lifelines`.
            on_attachment: See `SensorSetup`.
            simulated: See `SensorSetup`.
        """
        self._on_evidence = on_evidence
        self._absent: dict[str, SensorState] = {}
        self._recent: tuple[tuple[str, SensorState], ...] = ()
        self._asked_at = float("-inf")
        self._sensors: dict[type[Sensor], Sensor] = {}
        setup = SensorSetup(
            on_evidence, kernel_log_after, contained_after, core_directory, self._on_dump, on_attachment, simulated
        )
        for kind in registered():
            self._open(kind, setup)
        self.lifelines = Lifelines(self._sensor(UvmSensor), self._sensor(NvmlSensor), on_lifeline)
        """The lifelines held: the sensor that watches an address space keeps it alive, too."""
        self._logs: dict[tuple[str, Source], DaemonLogSensor] = {}
        self._sentinels: dict[str, Callable[[], SensorState]] = {}

    def share(self, evidence: Evidence) -> None:
        """Let every sensor take note of one sensor's evidence."""
        for sensor in self._sensors.values():
            sensor.observe(evidence)

    def told(self, evidence: Evidence) -> None:
        """Pass on what another part of the guard has seen."""
        self._on_evidence(evidence)

    def client_came(self, client: Client, handle: ProcessHandle) -> None:
        """Take note of a new client of a lane."""
        for sensor in self._sensors.values():
            sensor.client_came(client, handle)
        self._on_evidence(
            Evidence(
                source=Source.PROCESSES,
                observed_at=(now := time.monotonic()),
                # Not when its entries were read: it may have ended by then. As far as the wall clock was not set.
                happened_at=now - min(max(time.time() - client.connected_at, 0.0), _ENTERED_WITHIN),
                what=ClientCame(client.domain, client.lane, client.user),
                process=client.process,
                trust=Trust.PROOF,
                serial=f"came:{client.process}",
            )
        )

    def client_came_again(self, client: Client, handle: ProcessHandle) -> None:
        """Take note of another connection of a known client."""
        for sensor in self._sensors.values():
            sensor.client_came_again(client, handle)

    async def unwatchable(self, handle: ProcessHandle) -> str:
        """Return why something of a client cannot be watched now; "" if all that it has is, or it has nothing yet."""
        return await self._sensor(UvmSensor).unwatchable(handle)

    def client_ended(
        self,
        client: Client,
        handle: ProcessHandle,
        servers: tuple[int, ...],
        hold_for: Callable[[ProcessEnded], Hold],
    ) -> None:
        """Take note of a client's end.

        Args:
            client: The client.
            handle: Its process; still open.
            servers: The pids of its lane's servers.
            hold_for: Returns for how long its address space is to be kept, by how it ended.
        """
        end = self._sensor(ProcessEndsSensor).end_of(client, handle, servers)
        hold = hold_for(end.what) if isinstance(end.what, ProcessEnded) else Hold(0.0)
        kept = bool(hold.seconds) and self.lifelines.take(client.process, hold, client.user)
        if kept and isinstance(end.what, ProcessEnded):
            end = msgspec.structs.replace(end, what=msgspec.structs.replace(end.what, kept=True))
        for sensor in self._sensors.values():
            sensor.client_ended(client)
        self._on_evidence(end)

    def sentinel_stands(self, lane: str, state: Callable[[], SensorState]) -> None:
        """Take note of a lane's sentinel, which tells its own ``state``."""
        self._sentinels[lane] = state

    def sentinel_dumped(self, dump: bytes, began: float) -> None:
        """Take a GPU core dump of a lane's sentinel, written from ``began`` on (CLOCK_MONOTONIC seconds)."""
        self._on_dump(lambda: dump, began, None)

    def lane_began(self, report: LaneReport) -> None:
        """Follow the logs of a control daemon that was adopted or started, from here on."""
        for source, name in _LOGS:
            self._close_log(report.name, source)
            path = Path(report.log_directory) / name
            tail = LogTail(path)
            self._logs[report.name, source] = DaemonLogSensor(self._on_evidence, source, path, tail, lane=report.name)

    def lane_changed(self, report: LaneReport) -> None:
        """Take note of a lane's new state."""
        self._on_evidence(
            Evidence(
                source=Source.LANE,
                observed_at=time.monotonic(),
                what=LaneChanged(
                    report.domain,
                    report.name,
                    report.state.value,
                    report.reason,
                    tuple(server.process.pid for server in report.servers),
                    report.fault_asked,
                ),
                trust=Trust.PROOF,
            )
        )

    def position(self, source: Source) -> tuple[str, int] | None:
        """Return boot id and place up to which a source was read that keeps what it said; None if it is not read."""
        if source is Source.KMOD:
            return self._sensor(KmodSensor).position()
        return self._sensor(KernelLogSensor).position()

    def attachments(self) -> dict[ProcessKey, Attachment]:
        """Return which clients' address spaces are watched, and why the others are not."""
        return {attachment.process: attachment for attachment in self._sensor(UvmSensor).attachments()}

    def watches(self) -> bool:
        """Return whether there is a sensor that could watch the clients' address spaces, a second ago at most."""
        return any(name == UvmSensor.name and state.present for name, state in self.recent_states())

    def gpus(self) -> tuple[GpuReading, ...]:
        """Return the GPUs with their memory, as `client_memory` is read."""
        return self._sensor(NvmlSensor).gpus()

    def client_memory(self) -> Mapping[tuple[int, str], int]:
        """Return the bytes of GPU memory of each client, by pid and PCI address of the GPU."""
        return self._sensor(NvmlSensor).memory()

    def client_memory_of_all_gpus(self) -> dict[int, int]:
        """Return the bytes of GPU memory of each client, by pid."""
        sizes: dict[int, int] = {}
        for (pid, _), size in self.client_memory().items():
            sizes[pid] = sizes.get(pid, 0) + size
        return sizes

    def watch_memory(self, take: Callable[[MemoryReading], None] | None) -> None:
        """Read the clients' memory each 0.75 s, for ``take``; None: no more."""
        self._sensor(NvmlSensor).watch_memory(take)

    def states(self) -> tuple[tuple[str, SensorState], ...]:
        """Return the state of every sensor by name, asked afresh."""
        named = [(sensor.name, sensor.state()) for sensor in self._sensors.values()]
        named += self._absent.items()
        named += [(f"sentinel {lane}", state()) for lane, state in self._sentinels.items()]
        named += [(f"{source} {lane}", sensor.state()) for (lane, source), sensor in self._logs.items()]
        return tuple(named)

    def recent_states(self) -> tuple[tuple[str, SensorState], ...]:
        """Return the state of every sensor by name, as it was at most a second ago: any user may ask by HTTP."""
        now = time.monotonic()
        if now - self._asked_at > _RECENT:
            self._asked_at, self._recent = now, self.states()
        return self._recent

    def close(self) -> None:
        """Give everything back."""
        self.lifelines.close()
        for lane, source in list(self._logs):
            self._close_log(lane, source)
        for sensor in self._sensors.values():
            sensor.close()

    def _open(self, kind: type[Sensor], setup: SensorSetup) -> None:
        try:
            sensor = kind.open(setup)
        except OSError as error:
            self._absent[kind.name] = SensorState(False, str(error))
            return
        if sensor is not None:
            self._sensors[kind] = sensor

    def _sensor(self, kind: type[S]) -> S:
        sensor = self._sensors[kind]
        assert isinstance(sensor, kind)
        return sensor

    def _on_dump(
        self, read: Callable[[], bytes | GpuCore], began: float, process: ProcessKey | None, *, verified: bool = False
    ) -> None:
        self._sensor(SmErrorSensor).dumped(read, began, process, verified=verified)

    def _close_log(self, lane: str, source: Source) -> None:
        sensor = self._logs.pop((lane, source), None)
        if sensor is not None:
            sensor.close()
