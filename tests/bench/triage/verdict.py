"""What the guard said about a fault, compared with the known culprit."""

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from fault_injection.catalog import Fault

RIGHT: Final = "right"
UNKNOWN: Final = "unknown"
WRONG: Final = "WRONG"
NO_INCIDENT: Final = "no incident"


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The guard's word on one cell."""

    culprit: str
    """right, unknown, WRONG (another client is named), no incident, or empty: there is no verdict."""
    fault_class: str = ""
    class_right: bool = False
    confidence: str = ""
    latency_ms: float | None = None
    """From the injection to the publication of this verdict (of the incident, if the culprit stayed unknown)."""
    end_right: bool | None = None
    """For the end of a process: whether signal or exit and work in flight are told as they were."""
    incidents: tuple[str, ...] = ()
    """Ids of all incidents of this cell."""
    why: str = ""
    """Why there is no verdict, or what was wrong with it."""

    @property
    def given(self) -> bool:
        """Whether the guard could say anything at all."""
        return bool(self.culprit)


class Report(msgspec.Struct, frozen=True):
    """One incident as published or listed, of which only this matters here."""

    id: str
    fault_class: str
    culprit: int | None
    confidence: str
    published_at: float | None = None
    work_in_flight: bool | None = None
    evidence: tuple[dict[str, Any], ...] = ()


def report(record: object) -> Report | None:
    """An incident out of an event's data, a list's row or a bundle, however deep it lies; None if there is none."""
    if not isinstance(record, dict):
        return None
    inner = record
    while isinstance(deeper := next((inner[key] for key in ("record", "incident") if key in inner), None), dict):
        inner = {key: inner[key] for key in ("id", "published_at") if key in inner} | deeper
    if "fault_class" not in inner:
        return None
    culprit = inner.get("culprit")  # an object in an incident, a pid in its event
    pid = culprit.get("pid") if isinstance(culprit, dict) else culprit
    evidence = inner.get("evidence")
    published = inner.get("published_at")
    return Report(
        id=str(inner.get("id", "")),
        fault_class=str(inner["fault_class"]),
        culprit=pid if isinstance(pid, int) else None,
        work_in_flight=inner.get("work_in_flight"),
        confidence=str(inner.get("confidence", "")),
        published_at=published if isinstance(published, int | float) else None,
        evidence=tuple(evidence) if isinstance(evidence, Sequence) and not isinstance(evidence, str) else (),
    )


def judge(
    fault: Fault,
    injected: float,
    *,
    culprit: int | None,
    innocents: Collection[int],
    published: Sequence[Report],
    listed: Sequence[Report],
) -> Verdict:
    """Hold the incidents of one cell against the truth.

    `published` are the events in their order, `listed` the incidents as they stood at the end (they may have changed).
    One innocent that is named makes the whole cell WRONG, whatever else was said.
    """
    final = {each.id: each for each in published} | {each.id: each for each in listed}
    ids = tuple(final)
    accused = sorted({each.culprit for each in (*published, *final.values()) if each.culprit not in (None, culprit)})
    if not final:
        return Verdict(NO_INCIDENT, class_right=fault.fault_class == "none")
    main = min(final.values(), key=lambda each: (each.fault_class not in fault.classes, each.culprit is None))
    told = next((each for each in published if each.id == main.id and each.culprit == main.culprit), None)
    at = told.published_at if told else None
    if accused:
        what = ", ".join(f"innocent {pid}" if pid in innocents else f"{pid}" for pid in accused)
        culprit_word, why = WRONG, f"named {what}; it was {culprit or 'no client'}"
    else:
        culprit_word = UNKNOWN if main.culprit is None and culprit is not None else RIGHT
        why = ""
    return Verdict(
        culprit_word,
        fault_class=main.fault_class,
        class_right=main.fault_class in fault.classes,
        confidence=main.confidence,
        latency_ms=round((at - injected) * 1000, 3) if at is not None else None,
        end_right=_end_right(fault, main) if fault.fault_class == "process" else None,
        incidents=ids,
        why=why,
    )


def _end_right(fault: Fault, main: Report) -> bool:
    """Whether the evidence tells the culprit's end as it was."""
    signals = {"SIGKILL": 9, "SIGSEGV": 11}
    for evidence in main.evidence:
        what = evidence.get("what")
        if isinstance(what, dict) and what.get("type") == "process_ended":
            pid = (evidence.get("process") or {}).get("pid")
            if pid is not None and pid != main.culprit:
                continue
            right_signal = what.get("signal") == signals.get(fault.ends)
            told = main.work_in_flight if main.work_in_flight is not None else what.get("work_in_flight")
            right_oom = bool(what.get("oom_killed")) == bool(fault.needs)
            if right_signal and right_oom and told == fault.in_flight:
                return True
    return False
