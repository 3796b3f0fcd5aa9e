"""The incident pipeline: the way of one piece of evidence, from a sensor to a published incident and its remedies.

Sensor hub, failover, tracker (journal and triage), publication, policy and remedies are called by name, in this order.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.evidence import ClientCame, Evidence, ProcessEnded, Source, UvmFault
from mpsguard.guard.incident import Confidence, Ground, Incident
from mpsguard.guard.incidents.device_faults import DeviceFaults
from mpsguard.guard.incidents.domain_view import DomainView
from mpsguard.guard.incidents.failover import Failover
from mpsguard.guard.incidents.incident_counter import IncidentCounter
from mpsguard.guard.incidents.memory_watch import MemoryWatch
from mpsguard.guard.incidents.recovery_signs import RecoverySigns
from mpsguard.guard.incidents.remedy_executor import RemedyExecutor
from mpsguard.guard.incidents.remedy_resolver import domain_of
from mpsguard.guard.incidents.sensor_hub import SensorHub
from mpsguard.guard.incidents.tracker import IncidentTracker, TrackedIncident
from mpsguard.guard.journal.journal import Journal
from mpsguard.guard.metrics.registry import Metrics
from mpsguard.guard.model import Client
from mpsguard.guard.sensors.uvm_client import Attachment
from mpsguard.guard.triage.evidence_group import BEFORE
from mpsguard.guard.triage.grounds import HARMLESS
from mpsguard.linux import boot
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.tasks import finish

_CLEARING: Final = {Ground.UVM_QUEUE: 13, Ground.OWN_DUMP: 31}
"""Grounds that clear the others that a fault hit, with the Xid that tells of another kind of fault at the same time.
That a client's repetition faulted clears no other client: theirs may fault, too."""
_POSITIONS: Final = {Source.KERNEL_LOG: "kernel_log_position", Source.KMOD: "contained_position"}
"""Sources that keep what they said, by the name under which it is noted how much of it was taken."""

_CLOSE_WITHIN: Final = 5.0
"""Seconds that the journal has to write what waits."""


def proven_culprit(incident: Incident) -> ProcessKey | None:
    """Return the process that is proven to have caused the loss of a lane's work; None if none is."""
    if incident.culprit is None or incident.confidence is not Confidence.PROVEN or incident.ground in HARMLESS:
        return None
    return incident.culprit.process


def proven_innocents(incident: Incident) -> frozenset[ProcessKey]:
    """Return the clients that a fault hit and that are proven not to have caused it."""
    culprit = proven_culprit(incident)
    other = None if incident.ground is None else _CLEARING.get(incident.ground)
    if culprit is None or other is None or other in incident.xids:
        return frozenset()
    hit = (*incident.victims, *incident.survived)
    return frozenset(each.process for each in hit if each.process is not None) - {culprit}


class IncidentPipeline:
    """Owns journal, sensors and tracker. Made in the event loop, by the guard that holds the public directories."""

    def __init__(
        self,
        journal: Journal,
        domains: Mapping[str, DomainView],
        failover: Failover,
        remedies: RemedyExecutor,
        *,
        events: EventStream,
        metrics: Metrics,
        core_directory: Path | None,
        simulated: bool,
    ) -> None:
        """``core_directory``, ``simulated``: see `SensorHub`. ``failover`` and ``remedies`` stay the caller's."""
        self.journal = journal
        self._domains = domains
        self._failover = failover
        self._remedies = remedies
        self._events = events
        self._metrics = metrics
        self._tracker = IncidentTracker(journal, self._clients)
        self._counter = IncidentCounter(metrics, self._domain_of)
        self.device_faults = DeviceFaults(journal)
        self._switching: asyncio.Task[Any] | None = None
        self._postponed: list[Evidence] = []
        """Evidence that came during a switchover, to be judged after it."""
        self._judging: asyncio.Handle | None = None
        self._judging_again: asyncio.TimerHandle | None = None
        self.sensors = SensorHub(
            self.observe,
            kernel_log_after=self._after(Source.KERNEL_LOG),
            contained_after=self._after(Source.KMOD),
            core_directory=core_directory,
            on_lifeline=self._publish_lifeline,
            on_attachment=self._publish_attachment,
            simulated=simulated,
        )
        self._recovery_signs = RecoverySigns(domains.values())
        self.memory = MemoryWatch(domains, self.sensors, self._held, events=events, metrics=metrics)

    async def close(self) -> None:
        """Give everything back; what was seen is on disk then, unless the disk hangs."""
        async with AsyncExitStack() as at_end:
            at_end.push_async_callback(self._close_journal)
            at_end.callback(self.sensors.close)
            at_end.push_async_callback(self.memory.close)
            at_end.callback(self._counter.close)
            for source in _POSITIONS:
                self._remember_position(source)
            if self._judging is not None:
                self._judging.cancel()
                self._judge()
            if self._judging_again is not None:
                self._judging_again.cancel()

    async def _close_journal(self) -> None:
        await finish(asyncio.to_thread(self.journal.close, _CLOSE_WITHIN))

    def observe(self, evidence: Evidence) -> None:
        """Take one piece of evidence."""
        self._metrics.evidence.labels(evidence.source.value).inc()
        self.sensors.share(evidence)
        if isinstance(evidence.what, ClientCame) and evidence.process is not None:
            self.memory.client_came(evidence.process)
        elif isinstance(evidence.what, ProcessEnded) and evidence.process is not None:
            self.memory.client_ended(evidence.process)
        if isinstance(evidence.what, UvmFault) and not evidence.what.fatal:
            # A page of managed memory that comes to the GPU: daily work, of which there is a lot.
            return
        # Fail over first: it is latency-critical and does not need a culprit.
        self._fail_over(evidence)
        if self._switching is None:
            self._record(evidence)
        else:
            # A verdict takes many milliseconds of this loop after a storm, and changes nothing of what is under way.
            self._postponed.append(evidence)
        self._recovery_signs.observe(evidence)

    def _fail_over(self, evidence: Evidence) -> None:
        switching = self._failover.act_on(evidence)
        if self._switching is None and switching is not None:
            self._switching = switching
            switching.add_done_callback(self._switched)

    def _switched(self, _: asyncio.Task[Any]) -> None:
        self._switching = None
        postponed, self._postponed = self._postponed, []
        for evidence in postponed:
            self._record(evidence)

    def _record(self, evidence: Evidence) -> None:
        over = self.device_faults.close(evidence)
        if over:
            self._events.publish("device_repaired", "", incidents=[fault.incident for fault in over])
        to_judge = self._tracker.add(evidence)
        if evidence.source in _POSITIONS:
            self._remember_position(evidence.source)
        if to_judge and self._judging is None:
            # Everything that is already here is judged at once: a burst of lines costs one look.
            self._judging = asyncio.get_running_loop().call_soon(self._judge)

    def _judge(self) -> None:
        self._judging = None
        changed, open_question = self._tracker.judge(time.monotonic())
        for tracked in changed:
            self._publish(tracked)
            self.device_faults.observe(tracked)
            self._remedies.consider(tracked.id, tracked.incident)
        if open_question and self._judging_again is None:
            # That nothing follows is known only when it has not.
            self._judging_again = asyncio.get_running_loop().call_later(BEFORE, self._judge_again)

    def _judge_again(self) -> None:
        self._judging_again = None
        self._judge()

    def _publish(self, tracked: TrackedIncident) -> None:
        incident = tracked.incident
        self._counter.observe(tracked)
        self._remember_proven(incident)
        self._events.publish(
            "incident",
            "",
            id=tracked.id,
            fault_class=incident.fault_class.value,
            confidence=incident.confidence.value,
            culprit=incident.culprit.pid if incident.culprit else None,
            candidates=[suspect.pid for suspect in incident.candidates],
            victims=[suspect.pid for suspect in incident.victims],
            survived=[suspect.pid for suspect in incident.survived],
            work_in_flight=incident.work_in_flight,
            lane=incident.lane,
            gpu=incident.gpu,
            xids=list(incident.xids),
            reason=incident.reason,
            began=incident.began,
            revision=incident.revision,
            published_at=time.monotonic(),
        )

    def _remember_proven(self, incident: Incident) -> None:
        culprit = proven_culprit(incident)
        domain = self._domain_of_client(culprit) if culprit is not None else None
        if culprit is not None and domain is not None:
            self._domains[domain].culprits.add(culprit)
        for process in proven_innocents(incident):
            domain = self._domain_of_client(process)
            if domain is not None:
                self._domains[domain].innocents[process] = incident.began

    def _domain_of(self, incident: Incident) -> str | None:
        return domain_of(incident, self._domain_of_client, self._domain_of_lane)

    def _domain_of_client(self, process: ProcessKey) -> str | None:
        return next((name for name, domain in self._domains.items() if domain.clients.get(process) is not None), None)

    def _domain_of_lane(self, lane: str) -> str | None:
        return next((name for name, domain in self._domains.items() if domain.lanes.named(lane) is not None), None)

    def _publish_lifeline(self, kind: str, data: Mapping[str, Any]) -> None:
        if kind == "lifeline_released":
            self._recovery_signs.lifeline_released(data["pid"], data["why"])
        self._events.publish(kind, "", user=data.get("uid"), **data)
        self._metrics.lifelines.set(len(self.sensors.lifelines.held()))

    def _publish_attachment(self, attachment: Attachment) -> None:
        client = next((client for client in self._clients() if client.process == attachment.process), None)
        if client is None:
            return
        if attachment.unwatchable:
            self._metrics.unwatched.labels(client.domain).inc()
        self._events.publish(
            "client_unwatched" if attachment.unwatchable else "client_watched",
            client.domain,
            user=client.user,
            pid=client.process.pid,
            start_ticks=client.process.start_ticks,
            uid=client.uid,
            reason=attachment.reason,
        )

    def _held(self) -> set[tuple[int, int | None]]:
        return {(lifeline.pid, lifeline.uid) for lifeline in self.sensors.lifelines.held()}

    def _clients(self) -> list[Client]:
        return [client for domain in self._domains.values() for client in domain.clients.all()]

    def _after(self, source: Source) -> int | None:
        saved = self.journal.recall(_POSITIONS[source])
        if saved is None:
            return None
        try:
            return boot.resume_after(msgspec.json.decode(saved, type=tuple[str, int]))
        except msgspec.DecodeError:
            return None

    def _remember_position(self, source: Source) -> None:
        position = self.sensors.position(source)
        if position is not None:
            self.journal.remember(_POSITIONS[source], msgspec.json.encode(position).decode())
