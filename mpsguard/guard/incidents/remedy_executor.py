"""Carries out what policy decides about incidents, and keeps what was decided and what came of it.

At most one run of a remedy for an incident, and one at a time against a process: verdicts are told again and again, and
two incidents may name the same culprit. All in one event loop.
"""

import asyncio
from collections import OrderedDict
from typing import Any, Final

import msgspec

from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.incident import Incident
from mpsguard.guard.incidents.remedy_resolver import DomainRemedies, RemedyResolver
from mpsguard.guard.journal.journal import Journal
from mpsguard.guard.metrics.registry import Metrics
from mpsguard.guard.remedies import policy
from mpsguard.guard.remedies.policy import Decision, Verdict
from mpsguard.guard.remedies.remedy import Failed, NotNeeded, Observed, Outcome, Remedy, RemedyCase
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes.procfs import printable
from mpsguard.linux.tasks import Owner, report_defect

_SAID = {
    Verdict.RUN: "it is carried out",
    Verdict.OBSERVE: "it is observed only",
    Verdict.DECLINE: "it is not carried out",
}
_KEPT: Final = 1000
"""Incidents with remedies that are remembered; the tracker forgets one long before so many have followed."""


class RemedyLog:
    """Tells journal, event stream and metrics of remedies; waits for none of them."""

    def __init__(self, journal: Journal, events: EventStream, metrics: Metrics) -> None:
        self._journal = journal
        self._events = events
        self._metrics = metrics

    def record_decision(self, domain: str, incident_id: str, decision: Decision) -> None:
        """Log what policy decides on a remedy for an incident, when that is new or has changed."""
        step = decision.step
        text = f"{step.remedy}: {_SAID[decision.verdict]}: {decision.why} (revision {decision.revision} of the verdict)"
        data = {
            "domain": domain,
            "remedy": step.remedy,
            "mode": step.mode,
            "verdict": decision.verdict.value,
            "revision": decision.revision,
        }
        self._journal.record_decision(incident_id, "decided", text, data)
        self._publish("decided", domain, incident_id, text, data)

    def record_outcome(self, domain: str, case: RemedyCase, outcome: Outcome) -> None:
        """Log the outcome of a remedy that was run, or observed, for the one time."""
        name = case.step.remedy
        word = str(outcome.__struct_config__.tag)
        text = printable(f"{name}: {word.replace('_', ' ')}: {outcome.text}")
        data = {
            "domain": domain,
            "remedy": name,
            "mode": case.step.mode,
            "outcome": word,
            "culprit": msgspec.to_builtins(case.culprit),
        }
        self._metrics.remedies.labels(name, word).inc()
        self._journal.record_decision(case.incident_id, "outcome", text, data)
        self._publish("outcome", domain, case.incident_id, text, data)

    def _publish(self, phase: str, domain: str, incident_id: str, text: str, data: dict[str, Any]) -> None:
        more = {key: value for key, value in data.items() if key != "domain"}
        self._events.publish("remedy", domain, id=incident_id, phase=phase, text=text, **more)


class RemedyExecutor:
    """Owns the remedies under way."""

    def __init__(self, resolver: RemedyResolver, log: RemedyLog) -> None:
        self._resolver = resolver
        self._log = log
        self._past: OrderedDict[str, dict[str, Decision | None]] = OrderedDict()
        """Incident to remedy to the last decision that was told; None once it was run or observed."""
        self._against: dict[tuple[ProcessKey, str], str] = {}
        """Culprit and remedy under way, to the incident."""
        self._tasks = Owner()
        self._closed = False

    def consider(self, incident_id: str, incident: Incident) -> None:
        """An incident is new, or its verdict is; what follows is begun, and not waited for."""
        domain = self._resolver.of(incident)
        if domain is None or self._closed:
            return
        culprit = incident.culprit.process if incident.culprit else None
        standing = None if culprit is None else self._resolver.standing(culprit)
        past = self._past.setdefault(incident_id, {})
        self._past.move_to_end(incident_id)
        while len(self._past) > _KEPT:
            self._past.popitem(last=False)
        for decision in policy.decide(incident, domain.remedies, standing):
            name = decision.step.remedy
            if name in past and past[name] in (None, decision):
                continue
            self._log.record_decision(domain.domain, incident_id, decision)
            past[name] = decision if decision.verdict is Verdict.DECLINE else None
            if decision.verdict is not Verdict.DECLINE:
                self._follow(domain, RemedyCase(incident_id, incident, culprit, decision.step), decision.verdict)

    def _follow(self, domain: DomainRemedies, case: RemedyCase, verdict: Verdict) -> None:
        remedy = domain.by_name[case.step.remedy]
        # Without a culprit, it is no other incident's remedy that is under way.
        target = None if case.culprit is None else (case.culprit, remedy.name)
        other = None if target is None else self._against.get(target)
        if verdict is Verdict.OBSERVE:
            self._log.record_outcome(domain.domain, case, Observed(remedy.would(case)))
        elif other is not None:
            self._log.record_outcome(domain.domain, case, NotNeeded(f"it is under way for incident {other}"))
        else:
            if target is not None:
                self._against[target] = case.incident_id
            self._tasks.spawn(self._run(domain.domain, remedy, case), name=f"{remedy.name} {case.culprit}")

    async def _run(self, domain: str, remedy: Remedy, case: RemedyCase) -> None:
        within = remedy.within(case)
        outcome: Outcome = Failed("broken off: the guard ends")
        try:
            async with asyncio.timeout(within):
                outcome = await remedy.apply(case)
        except TimeoutError:
            outcome = Failed(f"broken off: not done within {within:g} s")
        except Exception as error:  # a fault of ours in one remedy must not end the guard
            report_defect(f"remedy {remedy.name}", error)
            outcome = Failed(f"{type(error).__name__}: {error}")
        finally:
            if case.culprit is not None:
                del self._against[case.culprit, remedy.name]
            self._log.record_outcome(domain, case, outcome)

    async def close(self) -> None:
        """Break off what is under way, and do nothing more; the outcome of each is logged then."""
        self._closed = True
        # One that was not begun yet has no `finally` to come to.
        try:
            await asyncio.sleep(0)
        finally:
            await self._tasks.end()
