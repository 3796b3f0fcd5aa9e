"""Fault case: an evidence group, with the queries that the rules of triage need."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec

from mpsguard.guard import daemon_log
from mpsguard.guard.evidence import Evidence, FaultContained, LaneChanged, ProcessEnded, ServerSays, UvmFault, Xid
from mpsguard.guard.incident import Confidence, FaultClass, Ground, Incident, Suspect
from mpsguard.guard.triage import severity
from mpsguard.guard.triage.client_history import ClientHistory, when
from mpsguard.guard.triage.evidence_group import BEFORE, EvidenceGroup
from mpsguard.guard.triage.grounds import GROUNDS
from mpsguard.guard.triage.lane_history import ClientStay
from mpsguard.guard.triage.past import Past
from mpsguard.linux.identity import ProcessKey


class FaultCase:
    """An evidence group, with the queries that the rules of triage need."""

    def __init__(
        self,
        group: EvidenceGroup,
        history: ClientHistory,
        now: float,
        past: Past,
        repeated: Mapping[ProcessKey, EvidenceGroup],
    ) -> None:
        """Create it.

        Args:
            group: the evidence.
            history: the clients and lanes.
            now: time of the judgement, on the evidence's clock.
            past: the earlier faults.
            repeated: the first fault of each client in work that it repeated alone.
        """
        self.group = group
        self.history = history
        self.now = now
        self.repeated = repeated
        self._past = past
        self.unnoticed = past.unnoticed()
        """Earlier faults that no server noticed; see `orphaned_work`."""
        self.xids = tuple(sorted({e.what.number for e in group.evidence if isinstance(e.what, Xid)}))
        told = severity.severities(group.evidence)
        self.device_signs = tuple(found for _, found in severity.device_signs(told))
        self.told_xids = tuple(
            sorted(((e.what.number, found) for e, found in told if isinstance(e.what, Xid)), key=lambda pair: pair[0])
        )
        """Number and severity of each Xid that says something, by number."""

    def was_hit(self, process: ProcessKey | None) -> bool:
        """Return whether an earlier fault has hit a process: then it is no cause of this one, however it ends."""
        return self._past.was_hit(process, self.group.began)

    def had_lost(self, process: ProcessKey) -> bool:
        """Return whether a process had lost its context by an earlier fault: this one took nothing from it."""
        return self._past.had_lost(process, self.group.began)

    def has_repeated(self, process: ProcessKey) -> bool:
        """Return whether the fault that a process repeated alone is proven to have been its lane's."""
        return self._past.has_repeated(process)

    def server_lines(self, *words: str) -> list[Evidence]:
        """Return the lines of the daemons' logs with these meanings."""
        return [e for e in self.group.evidence if isinstance(e.what, ServerSays) and e.what.what in words]

    def was_told_to_end(self, line: Evidence) -> bool:
        """Return whether a line tells of the end of a server that the guard told to end."""
        what = line.what
        return isinstance(what, ServerSays) and self.history.told_to_end(what.server, what.lane)

    def torn_down(self) -> set[ProcessKey]:
        """Return the clients that the server says it tears down; its log names pids."""
        lines = self.server_lines(daemon_log.TEARDOWN, daemon_log.STICKY)
        pids = {e.what.client for e in lines if isinstance(e.what, ServerSays)}
        stays = (self.history.of_pid(pid, self.group.began) for pid in pids if pid is not None)
        return {stay.process for stay in stays if stay is not None}

    def fatal_faults(self) -> dict[ProcessKey, Evidence]:
        """Return the first fatal fault of each process that had one."""
        first: dict[ProcessKey, Evidence] = {}
        for each in self.group.evidence:
            if isinstance(each.what, UvmFault) and each.what.fatal and each.process is not None:
                first.setdefault(each.process, each)
        return first

    def contained(self) -> dict[ProcessKey, Evidence]:
        """Return the contained faults by process; {} if there are signs of a fault that was not contained."""
        if self.xids or self.server_lines(daemon_log.BEGINS, daemon_log.STICKY, daemon_log.TEARDOWN):
            return {}
        return {
            each.process: each
            for each in self.group.evidence
            if isinstance(each.what, FaultContained) and each.process is not None
        }

    def ends(self) -> list[Evidence]:
        """Return the ends of clients, oldest first."""
        return [
            e
            for e in self.group.evidence
            if isinstance(e.what, ProcessEnded) and self.history.stay(e.process) is not None
        ]

    def first_gpu_sign(self) -> float | None:
        """Return the time of the first sign from the GPU or a server; ends of processes do not count."""
        return next((when(e) for e in self.group.anchors if not isinstance(e.what, ProcessEnded)), None)

    def involves_clients(self) -> bool:
        """Return whether evidence besides the kernel log indicates a fault of a client."""
        return bool(
            self.server_lines(
                daemon_log.BEGINS, daemon_log.CULPRIT, daemon_log.TEARDOWN, daemon_log.STICKY, daemon_log.EXITED
            )
            or self.ends()
        )

    @cached_property
    def lane(self) -> str | None:
        """The one lane that the fault affected; None if it is unknown, or there are several.

        A fault ends the clients of its own lane only; clients of another lane on the same GPU stall meanwhile, and
        continue.
        """
        affected = {e.what.lane for e in self.group.anchors if isinstance(e.what, LaneChanged)}
        affected |= {
            e.what.lane
            for e in self.group.evidence
            if isinstance(e.what, ServerSays) and e.what.lane is not None and e.what.what != daemon_log.ENDS
        }
        for process in (*self.torn_down(), *self.fatal_faults()):
            stay = self.history.stay(process, self.group.began)
            # A server tears down second drivers, too: the work of their clients is on another lane.
            if stay is not None and not affected & self.history.lanes_of(process, self.group.began):
                affected.add(stay.lane)
        return affected.pop() if len(affected) == 1 else None

    def present(self, at: float | None = None) -> tuple[ClientStay, ...]:
        """Return the clients alive when the fault began, or at ``at``; of its lane only, if that is known."""
        return self.history.present(self.group.began if at is None else at, self.lane)

    def left_before(self) -> tuple[ClientStay, ...]:
        """Return the clients alive shortly before the fault, of its lane if known: their work may have caused it."""
        return self.present(self.group.began - BEFORE)

    def on_any_lane(self) -> tuple[ClientStay, ...]:
        """Return all clients alive when the fault began."""
        return self.history.present(self.group.began, None)

    def named(
        self,
        fault_class: FaultClass,
        ground: Ground,
        reason: str,
        culprit: Suspect,
        *,
        victims: Sequence[ClientStay] | None = None,
        began: float | None = None,
        work_in_flight: bool | None = None,
        more: Sequence[Evidence] = (),
    ) -> Incident:
        """Return an incident with a culprit; the ground determines the confidence. ``more``: see `incident`."""
        incident = self.incident(
            fault_class,
            GROUNDS[ground].confidence,
            reason,
            culprit=culprit,
            victims=victims,
            began=began,
            work_in_flight=work_in_flight,
            more=more,
        )
        return msgspec.structs.replace(incident, ground=ground)

    def unknown(self, fault_class: FaultClass, why: str, left: Sequence[ClientStay] = ()) -> Incident:
        """Return an incident with the clients present as candidates, and those in ``left``, which had just ended."""
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
        candidates: Sequence[ClientStay] = (),
        victims: Sequence[ClientStay] | None = None,
        began: float | None = None,
        work_in_flight: bool | None = None,
        more: Sequence[Evidence] = (),
    ) -> Incident:
        """Return an incident with all evidence of this case.

        Args:
            fault_class: of the incident.
            confidence: in the culprit, or in that there is none.
            reason: one sentence.
            culprit: the process that caused the fault, if it is known.
            candidates: the clients that may have caused it, if the culprit is not known.
            victims: the clients that were hit; if None, all clients present but the culprit.
            began: the time of the fault; if None, that of the group.
            work_in_flight: see `Incident`.
            more: evidence of another time that belongs to it.
        """
        present = self.present() if victims is None else victims
        # A second driver that waits has no work to lose, nor has a client that has gone over.
        there = [stay for stay in present if stay.left is None or stay.left >= self.group.began]
        hit = [stay for stay in there if stay.spare_until < self.group.began]
        accused = self.history.stay(culprit.process, self.group.began) if culprit is not None else None
        lanes = {stay.lane for stay in (*hit, *candidates, accused) if stay is not None}
        others = [stay for stay in hit if culprit is None or stay.process.pid != culprit.pid]
        return Incident(
            fault_class=fault_class,
            began=self.group.began if began is None else began,
            ended=max(e.observed_at for e in self.group.evidence),
            gpu=self.group.gpu,
            lane=lanes.pop() if len(lanes) == 1 else None,
            culprit=culprit,
            candidates=tuple(self.history.suspect(stay.process) for stay in candidates),
            victims=tuple(self.history.suspect(stay.process) for stay in others if stay.left is None),
            survived=tuple(self.history.suspect(stay.process) for stay in others if stay.left is not None),
            confidence=confidence,
            reason=reason,
            xids=self.xids,
            work_in_flight=work_in_flight,
            evidence=tuple(sorted(dict.fromkeys((*self.group.evidence, *more)), key=when)),
        )
