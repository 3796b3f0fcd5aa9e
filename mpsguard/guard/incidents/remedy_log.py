"""What is decided and done about incidents, told to the journal, the event stream and the metrics."""

from typing import Any

import msgspec

from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.journal.journal import Journal
from mpsguard.guard.metrics.registry import Metrics
from mpsguard.guard.remedies.policy import Decision, Verdict
from mpsguard.guard.remedies.remedy import Outcome, RemedyCase
from mpsguard.linux.processes.procfs import printable

_SAID = {
    Verdict.RUN: "it is carried out",
    Verdict.OBSERVE: "it is observed only",
    Verdict.DECLINE: "it is not carried out",
}


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
