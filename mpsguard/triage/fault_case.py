"""One episode, with the questions that the rules ask of it."""

from collections.abc import Sequence
from functools import cached_property

import msgspec

from mpsguard import daemon_log
from mpsguard.evidence import Evidence, FaultContained, LaneChanged, ProcessEnded, ServerSays, UvmFault, Xid
from mpsguard.incident import Confidence, FaultClass, Ground, Incident, Suspect
from mpsguard.model import ProcessKey
from mpsguard.triage import catalog
from mpsguard.triage.client_history import ClientHistory, Member, when
from mpsguard.triage.evidence_group import BEFORE, EvidenceGroup
from mpsguard.triage.grounds import GROUNDS
from mpsguard.triage.past import Past


class FaultCase:
    """One episode with the questions that the rules ask of it."""

    def __init__(self, episode: EvidenceGroup, population: ClientHistory, now: float, past: Past) -> None:
        """``past``: what is known of earlier faults."""
        self.episode = episode
        self.population = population
        self.now = now
        self._past = past
        self.unnoticed = past.unnoticed()
        """See `left_behind`."""
        self.xids = tuple(sorted({e.what.number for e in episode.evidence if isinstance(e.what, Xid)}))
        self.levels = {catalog.lookup(number).level for number in self.xids}

    def was_hit(self, process: ProcessKey | None) -> bool:
        """Whether an earlier fault has hit a process: it is no cause of this one, however it ends."""
        return self._past.was_hit(process, self.episode.began)

    def said(self, *words: str) -> list[Evidence]:
        """What the daemons' logs said, of these kinds."""
        return [e for e in self.episode.evidence if isinstance(e.what, ServerSays) and e.what.what in words]

    def torn_down(self) -> set[ProcessKey]:
        """The clients that the server says it tears down; it knows pids."""
        said = self.said(daemon_log.TEARDOWN, daemon_log.STICKY)
        pids = {e.what.client for e in said if isinstance(e.what, ServerSays)}
        members = (self.population.of_pid(pid, self.episode.began) for pid in pids if pid is not None)
        return {member.process for member in members if member is not None}

    def fatal_faults(self) -> dict[ProcessKey, Evidence]:
        """The first fatal fault of each process that had one."""
        first: dict[ProcessKey, Evidence] = {}
        for each in self.episode.evidence:
            if isinstance(each.what, UvmFault) and each.what.fatal and each.process is not None:
                first.setdefault(each.process, each)
        return first

    def contained(self) -> dict[ProcessKey, Evidence]:
        """The faults that stayed with their process; none if the GPU tells of a fault after all."""
        if self.xids or self.said(daemon_log.BEGINS, daemon_log.STICKY, daemon_log.TEARDOWN):
            return {}
        return {
            each.process: each
            for each in self.episode.evidence
            if isinstance(each.what, FaultContained) and each.process is not None
        }

    def ends(self) -> list[Evidence]:
        """How clients ended, oldest first."""
        return [
            e
            for e in self.episode.evidence
            if isinstance(e.what, ProcessEnded) and self.population.member(e.process) is not None
        ]

    def first_gpu_sign(self) -> float | None:
        """When the GPU or a server first told of a fault, other than by somebody's end."""
        return next((when(e) for e in self.episode.anchors if not isinstance(e.what, ProcessEnded)), None)

    def involves_clients(self) -> bool:
        """Whether anything but the kernel log tells of a fault of ours."""
        return bool(
            self.said(daemon_log.BEGINS, daemon_log.CULPRIT, daemon_log.TEARDOWN, daemon_log.STICKY, daemon_log.EXITED)
            or self.ends()
        )

    @cached_property
    def lane(self) -> str | None:
        """The one lane that the fault struck; None if nothing tells, or it struck several.

        A fault ends the clients of its lane alone; those of another lane on the same GPU wait for it, and go on.
        """
        struck = {e.what.lane for e in self.episode.anchors if isinstance(e.what, LaneChanged)}
        struck |= {
            e.what.lane
            for e in self.episode.evidence
            if isinstance(e.what, ServerSays) and e.what.lane is not None and e.what.what != daemon_log.ENDS
        }
        for process in (*self.torn_down(), *self.fatal_faults()):
            member = self.population.member(process)
            if member is not None:
                struck.add(member.lane)
        return struck.pop() if len(struck) == 1 else None

    def present(self, at: float | None = None) -> tuple[Member, ...]:
        """Clients alive when it began, of its lane if that is known."""
        return self.population.present(self.episode.began if at is None else at, self.lane)

    def left_before(self) -> tuple[Member, ...]:
        """Clients alive shortly before it began, of its lane if that is known: work of theirs may have caused it."""
        return self.present(self.episode.began - BEFORE)

    def on_any_lane(self) -> tuple[Member, ...]:
        """All clients alive when it began."""
        return self.population.present(self.episode.began, None)

    def named(
        self,
        fault_class: FaultClass,
        ground: Ground,
        reason: str,
        culprit: Suspect,
        *,
        victims: Sequence[Member] | None = None,
        began: float | None = None,
        work_in_flight: bool | None = None,
    ) -> Incident:
        """An incident with a culprit; how sure that is, its ground says."""
        incident = self.incident(
            fault_class,
            GROUNDS[ground].confidence,
            reason,
            culprit=culprit,
            victims=victims,
            began=began,
            work_in_flight=work_in_flight,
        )
        return msgspec.structs.replace(incident, ground=ground)

    def unknown(self, fault_class: FaultClass, why: str, left: Sequence[Member] = ()) -> Incident:
        """One of the clients that were there; ``left``: clients that had just ended, which may have done it as well."""
        candidates = (*self.present(), *left)
        return self.incident(
            fault_class,
            Confidence.UNKNOWN,
            f"The culprit is one of {len(candidates)} clients: {why}.",
            candidates=candidates,
        )

    def incident(
        self,
        fault_class: FaultClass,
        confidence: Confidence,
        reason: str,
        *,
        culprit: Suspect | None = None,
        candidates: Sequence[Member] = (),
        victims: Sequence[Member] | None = None,
        began: float | None = None,
        work_in_flight: bool | None = None,
    ) -> Incident:
        """An incident on all of this case's evidence; victims are all clients present but the culprit by default."""
        hit = self.present() if victims is None else victims
        accused = self.population.member(culprit.process) if culprit is not None else None
        lanes = {member.lane for member in (*hit, *candidates, accused) if member is not None}
        return Incident(
            fault_class=fault_class,
            began=self.episode.began if began is None else began,
            ended=max(e.observed_at for e in self.episode.evidence),
            gpu=self.episode.gpu,
            lane=lanes.pop() if len(lanes) == 1 else None,
            culprit=culprit,
            candidates=tuple(self.population.suspect(member.process) for member in candidates),
            victims=tuple(
                self.population.suspect(member.process)
                for member in hit
                if culprit is None or member.process.pid != culprit.pid
            ),
            confidence=confidence,
            reason=reason,
            xids=self.xids,
            work_in_flight=work_in_flight,
            evidence=self.episode.evidence,
        )
