"""From evidence to incidents: the senses, the desk that judges what they see, and the journal that keeps it all."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from mpsguard.control_api.event_stream import EventStream
from mpsguard.evidence import Evidence, Source, UvmFault
from mpsguard.incident import Incident
from mpsguard.incidents.sensor_hub import SensorHub
from mpsguard.incidents.tracker import IncidentTracker
from mpsguard.journal.journal import Journal
from mpsguard.metrics.registry import Metrics
from mpsguard.model import Client
from mpsguard.sensors import kernel_log
from mpsguard.sensors.uvm_client import Attachment

_POSITION: Final = "kernel_log_position"
_CLOSE_WITHIN: Final = 5.0
"""Seconds that the journal has to write what waits."""


class IncidentPipeline:
    """Owns journal, desk and senses. Made in the event loop, by the guard that holds the public directories."""

    def __init__(
        self,
        journal: Journal,
        *,
        events: EventStream,
        metrics: Metrics,
        clients: Callable[[], Iterable[Client]],
        core_directory: Path | None,
        taken: Callable[[Evidence], asyncio.Task[Any] | None],
        concluded: Callable[[str, Incident], None],
    ) -> None:
        """``clients`` tells who is on the lanes now; ``core_directory``: see `SensorHub`.

        ``taken`` is told of every observation, before it is judged, and gives the work that is more urgent than a
        verdict, if there is any; ``concluded`` is told of every incident and of every change of its verdict, once the
        journal has it.
        """
        self.journal = journal
        self._events = events
        self._metrics = metrics
        self._taken = taken
        self._urgent: asyncio.Task[Any] | None = None
        self._waiting: list[Evidence] = []
        self._concluded = concluded
        self._desk = IncidentTracker(journal, clients, self._told)
        self._clients = clients
        self.senses = SensorHub(self._take, self._kernel_log_after(), core_directory, self._noticed, self._unwatched)

    async def close(self) -> None:
        """Give everything back; what was seen is on disk then, unless the disk hangs."""
        self._remember_position()
        self._desk.close()
        self.senses.close()
        await asyncio.to_thread(self.journal.close, _CLOSE_WITHIN)

    def _take(self, evidence: Evidence) -> None:
        self._metrics.evidence.labels(evidence.source.value).inc()
        if isinstance(evidence.what, UvmFault) and not evidence.what.fatal:
            # A page of managed memory that comes to the GPU: daily work, of which there is a lot.
            return
        # First, for here a millisecond counts: what will not live is left, whoever's fault it was.
        urgent = self._taken(evidence)
        if self._urgent is None and urgent is not None:
            self._urgent = urgent
            urgent.add_done_callback(self._judge_those_that_wait)
        # A verdict takes many milliseconds of this loop after a storm, and changes nothing of what is under way.
        if self._urgent is not None:
            self._waiting.append(evidence)
        else:
            self._judge(evidence)

    def _judge_those_that_wait(self, _: asyncio.Task[Any]) -> None:
        self._urgent = None
        waiting, self._waiting = self._waiting, []
        for evidence in waiting:
            self._judge(evidence)

    def _judge(self, evidence: Evidence) -> None:
        self._desk.take(evidence)
        if evidence.source is Source.KERNEL_LOG:
            self._remember_position()

    def _noticed(self, kind: str, data: Mapping[str, Any]) -> None:
        self._events.publish(kind, "", **data)
        self._metrics.lifelines.set(len(self.senses.lifelines.held()))

    def _unwatched(self, attachment: Attachment) -> None:
        client = next((client for client in self._clients() if client.process == attachment.process), None)
        if client is None:
            return
        if attachment.unwatchable:
            self._metrics.unwatched.labels(client.domain).inc()
        self._events.publish(
            "client_unwatched" if attachment.unwatchable else "client_watched",
            client.domain,
            pid=client.process.pid,
            start_ticks=client.process.start_ticks,
            uid=client.uid,
            reason=attachment.reason,
        )

    def _told(self, incident_id: str, incident: Incident, new: bool) -> None:
        if new:
            self._metrics.incidents.labels(incident.fault_class.value).inc()
        self._events.publish(
            "incident",
            "",
            id=incident_id,
            fault_class=incident.fault_class.value,
            confidence=incident.confidence.value,
            culprit=incident.culprit.pid if incident.culprit else None,
            candidates=[suspect.pid for suspect in incident.candidates],
            victims=[suspect.pid for suspect in incident.victims],
            work_in_flight=incident.work_in_flight,
            lane=incident.lane,
            gpu=incident.gpu,
            xids=list(incident.xids),
            reason=incident.reason,
            began=incident.began,
            revision=incident.revision,
            published_at=time.monotonic(),
        )
        self._concluded(incident_id, incident)

    def _kernel_log_after(self) -> int | None:
        saved = self.journal.recall(_POSITION)
        if saved is None:
            return None
        try:
            return kernel_log.resume_after(msgspec.json.decode(saved, type=tuple[str, int]))
        except msgspec.DecodeError:
            return None

    def _remember_position(self) -> None:
        position = self.senses.position()
        if position is not None:
            self.journal.remember(_POSITION, msgspec.json.encode(position).decode())
