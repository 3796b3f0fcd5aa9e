"""The guard's senses: every sensor, what each is to be told of, and one place to ask which of them are there."""

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from mpsguard.evidence import ClientCame, Evidence, LaneChanged, ProcessEnded, Source, Trust, UvmFault, Xid
from mpsguard.linux.log_tail import LogTail
from mpsguard.linux.process import ProcessHandle
from mpsguard.model import Client, LaneReport, ProcessKey
from mpsguard.remedies.held_lifelines import Lifelines
from mpsguard.remedies.lifeline import Hold
from mpsguard.sensors.core_directory import CoreDirectory
from mpsguard.sensors.daemon_logs import DaemonLogSensor
from mpsguard.sensors.kernel_log import KernelLogSensor
from mpsguard.sensors.kmod import KmodSensor
from mpsguard.sensors.nvml import NvmlSensor
from mpsguard.sensors.process_ends import ProcessEndsSensor
from mpsguard.sensors.sm_errors import SmErrorSensor
from mpsguard.sensors.state import SensorState
from mpsguard.sensors.uvm import UvmSensor
from mpsguard.sensors.uvm_client import Attachment
from mpsguard.sensors.zones import ZoneSensor

_SM_XIDS: Final = frozenset({13, 43})
"""What the kernel log says first of an SM fault (43 alone: `trap`)."""

_LOOK_AFTER: Final = 0.01
"""Seconds from such a line until the clients' memory maps are read, which takes a core: takeovers come first. No client
hears of its error sooner than 40 ms after the fault."""

_LOGS: Final = ((Source.SERVER_LOG, "server.log"), (Source.CONTROL_LOG, "control.log"))


class SensorHub:
    """Owns the sensors. Made inside a running event loop; all evidence goes to ``take``."""

    def __init__(
        self,
        take: Callable[[Evidence], None],
        kernel_log_after: int | None,
        core_directory: Path | None,
        notice: Callable[[str, Mapping[str, Any]], None],
        unwatched: Callable[[Attachment], None],
    ) -> None:
        """``kernel_log_after``: see `KernelLogSensor`; ``core_directory``: `CoreDirectory`; ``notice``: `Lifelines`.

        ``unwatched`` hears when a client cannot be watched, and when it can again.
        """
        self._take = take
        self._zones = ZoneSensor(take)
        self._uvm = UvmSensor(self._faulted, told=unwatched)
        self._kernel_log = KernelLogSensor(self._logged, after=kernel_log_after)
        self._nvml = NvmlSensor(take)
        self.lifelines = Lifelines(self._uvm, self._nvml, notice)
        """What is held of ended clients: the sensor that watches an address space keeps it alive, too."""
        self._kmod = KmodSensor(take)
        self._ends = ProcessEndsSensor()
        self._sm_errors = SmErrorSensor(take)
        self._cores: CoreDirectory | None = None
        self._no_cores = ""
        if core_directory is not None:
            try:
                self._cores = CoreDirectory(core_directory, self._sm_errors.dumped)
            except OSError as error:
                self._no_cores = str(error)
        self._logs: dict[tuple[str, Source], DaemonLogSensor] = {}
        self._sentinels: dict[str, Callable[[], SensorState]] = {}

    def client_came(self, client: Client, handle: ProcessHandle) -> None:
        """A client is on a lane from now on."""
        self._ends.client_came(client, handle)
        self._sm_errors.client_came(client.process)
        if self._cores is not None:
            self._cores.client_came(client)
        self._take(
            Evidence(
                source=Source.PROCESSES,
                observed_at=time.monotonic(),
                what=ClientCame(client.domain, client.lane, client.uid),
                process=client.process,
                trust=Trust.PROOF,
                serial=f"came:{client.process}",
            )
        )
        self._zones.client_came(handle)
        self._uvm.client_came(handle, client.uid)

    def client_came_again(self, client: Client, handle: ProcessHandle) -> None:
        """A known client has made another connection: it may have opened its address space since."""
        self._uvm.client_came(handle, client.uid)

    async def unwatchable(self, handle: ProcessHandle) -> str:
        """Why something of a client cannot be watched now; "" if all that it has is, or it has nothing yet."""
        return await self._uvm.unwatchable(handle)

    def client_ended(
        self,
        client: Client,
        handle: ProcessHandle,
        servers: tuple[int, ...],
        hold_for: Callable[[ProcessEnded], Hold],
    ) -> None:
        """A client has ended; ``handle`` is still open, ``servers`` are its lane's.

        ``hold_for`` tells for how long its address space is to be kept, by how it ended.
        """
        ended = self._ends.client_ended(client, handle, servers)
        hold = hold_for(ended.what) if isinstance(ended.what, ProcessEnded) else Hold(0.0)
        kept = bool(hold.seconds) and self.lifelines.take(client.process, hold, client.uid)
        if not kept:
            self._uvm.client_ended(client.process)
        elif isinstance(ended.what, ProcessEnded):
            ended = msgspec.structs.replace(ended, what=msgspec.structs.replace(ended.what, kept=True))
        self._sm_errors.client_ended(client.process)
        self._zones.client_ended(client.process)
        if self._cores is not None:
            self._cores.client_ended(client)
        self._take(ended)

    def sentinel_stands(self, lane: str, state: Callable[[], SensorState]) -> None:
        """A lane has a sentinel, which says itself how it is."""
        self._sentinels[lane] = state

    def sentinel_dumped(self, dump: bytes, began: float) -> None:
        """A lane's sentinel has written a GPU core dump."""
        self._sm_errors.dumped(lambda: dump, began, None)

    def lane_began(self, report: LaneReport) -> None:
        """A control daemon was adopted or started: follow its logs from here on."""
        for source, name in _LOGS:
            self._close_log(report.name, source)
            path = Path(report.log_directory) / name
            self._logs[report.name, source] = DaemonLogSensor(self._take, source, path, LogTail(path), lane=report.name)

    def lane_changed(self, report: LaneReport) -> None:
        """A lane's state is another one now."""
        self._take(
            Evidence(
                source=Source.LANE,
                observed_at=time.monotonic(),
                what=LaneChanged(
                    report.domain,
                    report.name,
                    report.state.value,
                    report.reason,
                    tuple(server.process.pid for server in report.servers),
                ),
                trust=Trust.PROOF,
            )
        )

    def position(self) -> tuple[str, int] | None:
        """Boot id and sequence number up to which the kernel log has been read."""
        return self._kernel_log.position()

    def attachments(self) -> dict[ProcessKey, Attachment]:
        """Which clients' address spaces are watched, and why the others are not."""
        return {attachment.process: attachment for attachment in self._uvm.attachments()}

    def states(self) -> tuple[tuple[str, SensorState], ...]:
        """Every sensor by name, asked afresh."""
        named: list[tuple[str, SensorState]] = [
            (Source.UVM, self._uvm.state()),
            (Source.KERNEL_LOG, self._kernel_log.state()),
            (Source.NVML, self._nvml.state()),
            (Source.KMOD, self._kmod.state()),
            (Source.PROCESSES, self._ends.state()),
            (Source.GPU_CORE, self._sm_errors.state()),
            (ZoneSensor.name, self._zones.state()),
        ]
        if self._cores is not None:
            named.append((CoreDirectory.name, self._cores.state()))
        elif self._no_cores:
            named.append((CoreDirectory.name, SensorState(False, self._no_cores)))
        named += [(f"sentinel {lane}", state()) for lane, state in self._sentinels.items()]
        named += [(f"{source} {lane}", sensor.state()) for (lane, source), sensor in self._logs.items()]
        return tuple((str(name), state) for name, state in named)

    def close(self) -> None:
        """Give everything back."""
        self.lifelines.close()
        for lane, source in list(self._logs):
            self._close_log(lane, source)
        if self._cores is not None:
            self._cores.close()
        for sensor in (self._uvm, self._kernel_log, self._nvml, self._kmod, self._ends, self._sm_errors, self._zones):
            sensor.close()

    def _faulted(self, evidence: Evidence) -> None:
        if isinstance(evidence.what, UvmFault) and not evidence.what.fatal:
            self._zones.fault(evidence)
        self._take(evidence)

    def _logged(self, evidence: Evidence) -> None:
        self._take(evidence)
        if isinstance(evidence.what, Xid) and evidence.what.number in _SM_XIDS:
            asyncio.get_running_loop().call_later(_LOOK_AFTER, self._sm_errors.sm_fault_seen)

    def _close_log(self, lane: str, source: Source) -> None:
        sensor = self._logs.pop((lane, source), None)
        if sensor is not None:
            sensor.close()
