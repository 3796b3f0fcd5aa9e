"""Watches the clients' memory limits: NVML's readings against what the clients were promised, and what is done then.

Only the driver's word on a connected client counts, known by pid and start time, and policy ends it only for the limit
that its server showed when it was handed over: a client that came before this guard, or that was connected without the
levers of its class, is only reported.

What an ended client has left (a lifeline) is in the reading of the process that has its pid now: one that has executed
another program, or has been given the number. If it was another user's, that process is not judged. If it was its own
user's, which could bring that about at will, it may have as much again as its limit.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

import msgspec

from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.incidents import memory_limits
from mpsguard.guard.incidents.domain_view import DomainView
from mpsguard.guard.incidents.memory_limits import Promise
from mpsguard.guard.metrics.registry import Metrics
from mpsguard.guard.model import Client
from mpsguard.guard.remedies import termination
from mpsguard.guard.remedies.termination import TerminationPlan
from mpsguard.guard.sensors.nvml_device import GpuIdentity, MemoryReading
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.pacing import backoff
from mpsguard.linux.tasks import Owner

GRACE: Final = 5.0
"""Seconds from SIGTERM to SIGKILL for a client that is ended."""

_SETTLED: Final = 10.0
"""Seconds below its limit after which a client that exceeds it anew is told of anew."""

_AGAIN: Final = (5.0, 300.0)
"""Seconds until the next attempt to end a client that could not be ended: doubled each time, up to the second one."""

_SILENT: Final = 5.0
"""Seconds without a reading after which the limits count as not measured."""


class Sensors(Protocol):
    """What reads the memory (`SensorHub`)."""

    def watch_memory(self, take: Callable[[MemoryReading], None] | None) -> None:
        """Give readings to ``take`` from now on; None: no more."""


class _LimitedClient(msgspec.Struct):
    """A client with a limit."""

    domain: str
    client: Client
    promises: Mapping[str, Promise]
    """By GPU as the configuration names it: as it was when the client came."""
    came: float
    """CLOCK_MONOTONIC seconds: an earlier reading is of another process that had its pid."""
    over: dict[str, float] = {}
    """GPUs (PCI address) of which it has, or had lately, too much; with the last time that it had."""
    ends_again: float = 0.0
    """Not before this time is it attempted to end it."""
    attempts: int = 0
    """To end it, that are over."""


class MemoryWatch:
    """Owns the watch over all domains' clients, and the tasks that end some of them. All in one event loop."""

    def __init__(
        self,
        domains: Mapping[str, DomainView],
        sensors: Sensors,
        held: Callable[[], Collection[tuple[int, int | None]]],
        *,
        events: EventStream,
        metrics: Metrics,
    ) -> None:
        """Create it; `client_came` starts it.

        Args:
            domains: all domains.
            sensors: reads the memory.
            held: returns pid and user of the ended clients that may have memory still; user None: not known.
            events: receives excesses.
            metrics: counts them.
        """
        self._domains = domains
        self._sensors = sensors
        self._held = held
        self._events = events
        self._metrics = metrics
        self._watched: dict[ProcessKey, _LimitedClient] = {}
        self._ending = Owner()
        self._silence: asyncio.TimerHandle | None = None
        self._unmeasured: set[tuple[str, str]] = set()
        """Domains and GPUs of which it was told that limits cannot be measured; GPU "" for all."""

    def client_came(self, process: ProcessKey) -> None:
        """Note what a client was promised, which later changes do not alter."""
        for name, domain in self._domains.items():
            client = domain.clients.get(process)
            if client is None:
                continue
            promises = memory_limits.promised(client, domain.settings, domain.lane_of(process).report.settings)
            if promises:
                self._watched[process] = _LimitedClient(name, client, promises, time.monotonic())
                if len(self._watched) == 1:
                    self._sensors.watch_memory(self._take)
                    self._expect()
            return

    def client_ended(self, process: ProcessKey) -> None:
        """Forget a client; its memory is not read any more if it was the last one with a limit."""
        if self._watched.pop(process, None) is not None and not self._watched:
            self._stop()

    def exceeding(self) -> set[ProcessKey]:
        """Return the clients that had too much memory when it was last read."""
        return {process for process, each in self._watched.items() if each.over}

    async def close(self) -> None:
        """End the watch, and the attempts to end clients."""
        self._watched.clear()
        self._stop()
        await self._ending.end()

    def _stop(self) -> None:
        self._sensors.watch_memory(None)
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _expect(self) -> None:
        """Tell if there is no reading for a while."""
        if self._silence is not None:
            self._silence.cancel()
        self._silence = asyncio.get_running_loop().call_later(_SILENT, self._is_silent)

    def _is_silent(self) -> None:
        self._silence = None
        for domain in {each.domain for each in self._watched.values()}:
            self._cannot(domain, "", f"NVML has told nothing of the clients' memory for {_SILENT:g} s")

    def _cannot(self, domain: str, gpu: str, why: str) -> None:
        if (domain, gpu) not in self._unmeasured:
            self._unmeasured.add((domain, gpu))
            self._events.publish("memory_limit_unmeasured", domain, gpu=gpu, detail=why)

    def _take(self, reading: MemoryReading) -> None:
        if not self._watched:
            return
        self._expect()
        self._unmeasured = {known for known in self._unmeasured if known[1]}
        answered = set(reading.gpus)
        left: dict[int, set[int | None]] = {}
        for pid, user in self._held():
            left.setdefault(pid, set()).add(user)
        named: dict[tuple[str, str], GpuIdentity | None] = {}
        for watched in list(self._watched.values()):
            domain = self._domains[watched.domain]
            for name, promise in watched.promises.items():
                at = (watched.domain, name)
                if at not in named:
                    named[at] = memory_limits.gpu_named(name, domain.settings.gpus, reading.every_gpu)
                gpu = named[at]
                if gpu is None:
                    self._cannot(*at, f"which GPU {name} is cannot be told: name it by its UUID")
                elif gpu not in answered:
                    self._cannot(*at, f"NVML does not tell the memory of the clients of GPU {gpu.address}")
                elif watched.came < reading.at:
                    users = left.get(watched.client.process.pid, set())
                    if users <= {watched.client.user}:
                        self._unmeasured.discard(at)
                        self._compare(watched, gpu, promise, reading, promise.limit * (2 if users else 1))

    def _compare(
        self, watched: _LimitedClient, gpu: GpuIdentity, promise: Promise, reading: MemoryReading, most: int
    ) -> None:
        size = reading.sizes.get((watched.client.process.pid, gpu.address), 0)
        if not memory_limits.exceeds(size, most):
            if size <= most and reading.at - watched.over.get(gpu.address, reading.at) > _SETTLED:
                del watched.over[gpu.address]
            return
        is_new = gpu.address not in watched.over
        watched.over[gpu.address] = reading.at
        ends = self._is_to_end(watched, promise)
        if is_new:
            self._tell(watched, gpu, promise, size, ends)
        if ends and reading.at >= watched.ends_again:
            watched.ends_again = float("inf")
            self._ending.spawn(self._end(watched), name=f"memory limit of {watched.client.process}")

    def _is_to_end(self, watched: _LimitedClient, promise: Promise) -> bool:
        settings = self._domains[watched.domain].settings
        given = next((each for each in settings.classes if each.name == watched.client.service_class), None)
        return promise.shown and given is not None and given.memory_over == "terminate"

    def _tell(self, watched: _LimitedClient, gpu: GpuIdentity, promise: Promise, size: int, ends: bool) -> None:
        client = watched.client
        self._metrics.memory_excesses.labels(watched.domain, client.service_class or "").inc()
        self._events.publish(
            "memory_limit_exceeded",
            watched.domain,
            user=client.user,
            pid=client.process.pid,
            start_ticks=client.process.start_ticks,
            uid=client.uid,
            service_class=client.service_class,
            lane=client.lane,
            gpu=gpu.address,
            gpu_uuid=gpu.uuid,
            bytes=size,
            limit=promise.limit,
            tolerance=memory_limits.TOLERANCE,
            limit_of="class" if promise.by_class else "domain",
            action="terminate" if ends else "report",
        )

    async def _end(self, watched: _LimitedClient) -> None:
        process = watched.client.process
        domain = self._domains[watched.domain]
        held = domain.clients.handle(process)
        if held is None:
            return
        plan = TerminationPlan(domain.settings.policy.command_deadline, signal.SIGTERM, GRACE)
        try:
            with held as client:
                result = await termination.terminate(domain.lanes_of(process), client, plan)
        finally:
            watched.ends_again = time.monotonic() + backoff(watched.attempts, *_AGAIN)
            watched.attempts += 1
        kind, data = result.event()
        self._events.publish(kind, watched.domain, **data)
