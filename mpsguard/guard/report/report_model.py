"""Report model: an incident in chronological order, from which every format of the report is rendered."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from mpsguard.guard.evidence import Evidence
from mpsguard.guard.incident import Incident, Suspect
from mpsguard.guard.journal.records import RecordedIncident
from mpsguard.guard.report import messages
from mpsguard.guard.report.messages import Advice
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes.procfs import printable
from mpsguard.linux.times import clock

_GUARD: Final = "mpsguard"
"""The track of the guard's own decisions and actions."""


_MOST_INLINE: Final = 4
"""Processes that a fact names; more of them are a list, which a reader folds."""

_MOST_ALIKE: Final = 3
"""Timeline entries of one kind that are told one by one."""

_NUMBER: Final = re.compile(r"0x[0-9a-f]+|\d+")

_MISSING: Final = {"culprit": "not known", "candidates": "none", "victims": "none"}
"""Text for a group without a process."""


class TrackRole(StrEnum):
    """The part of a track, or of a timeline entry on it, in the incident."""

    CULPRIT = "culprit"
    CANDIDATE = "candidate"
    VICTIM = "victim"
    SURVIVOR = "survivor"
    SENSOR = "sensor"
    """An observation about no particular process."""
    GUARD = "guard"


class TimelineEntry(msgspec.Struct, frozen=True):
    """One observation or decision, placed in milliseconds after the incident began."""

    number: int
    ms: float
    off: float
    """Uncertainty of ``ms``, in milliseconds either way."""
    track: str
    role: TrackRole
    text: str
    source: str
    trust: str


class ProcessList(msgspec.Struct, frozen=True):
    """The processes of a fact that counts them."""

    pids: tuple[int, ...]
    names: tuple[str, ...]
    """With their command lines, in the same order."""


class Moment(msgspec.Struct, frozen=True):
    """A timeline entry, which may stand for others of its kind."""

    entry: TimelineEntry
    more: int = 0
    """Later entries of its kind that are left out."""
    last_ms: float = 0.0
    """The time of the last one of these, as in `TimelineEntry.ms`."""


class ReportModel(msgspec.Struct, frozen=True):
    """An incident as printable texts, which are escaped for no format."""

    id: str
    verdict: str
    reason: str
    facts: tuple[tuple[str, str], ...]
    entries: tuple[TimelineEntry, ...]
    """In the order in which they happened."""
    tracks: tuple[tuple[str, TrackRole], ...]
    """The processes and sensors of the entries, in order of appearance, the culprit's first."""
    steps: tuple[str, ...]
    left_out: int
    commands: tuple[str, ...] = ()
    """Command lines that may occur in the other texts, verbatim."""
    lists: dict[str, ProcessList] = {}
    """By the name of the fact that counts them."""


def build_report(record: RecordedIncident, advice: Advice | None = None) -> ReportModel:
    """Return the report of an incident; ``advice`` is on single Xids."""
    incident = record.incident
    commands = {client.process: client.command for client in record.clients}
    roles = _roles(incident)
    names = _names(incident, commands)
    unnumbered = [_evidence_entry(piece, incident.began, roles, names) for piece in incident.evidence]
    unnumbered += [
        TimelineEntry(
            number=0,
            ms=_milliseconds(decision.at - record.wall_offset - incident.began),
            off=0.0,
            track=_GUARD,
            role=TrackRole.GUARD,
            text=printable(f"{decision.kind}: {decision.text}"),
            source=_GUARD,
            trust="",
        )
        for decision in record.decisions
    ]
    unnumbered.sort(key=lambda entry: entry.ms)
    entries = tuple(msgspec.structs.replace(entry, number=n) for n, entry in enumerate(unnumbered, 1))
    order = list(TrackRole)
    tracks = dict.fromkeys((entry.track, entry.role) for entry in entries)
    groups = _groups(incident)
    return ReportModel(
        id=printable(record.id),
        verdict=printable(messages.verdict(incident, commands)),
        reason=printable(incident.reason),
        facts=_facts(record, groups, commands),
        entries=entries,
        tracks=tuple(sorted(tracks, key=lambda track: order.index(track[1]))),
        steps=tuple(printable(step) for step in messages.what_to_do(incident, advice or {})),
        left_out=record.evidence_left_out,
        commands=tuple(dict.fromkeys(printable(command) for command in commands.values() if command)),
        lists={
            name: ProcessList(
                tuple(suspect.pid for suspect in group),
                tuple(printable(messages.suspect(suspect, commands)) for suspect in group),
            )
            for name, group in groups.items()
            if len(group) > _MOST_INLINE and _same_as(name, groups) is None
        },
    )


def condensed(entries: Sequence[TimelineEntry]) -> tuple[Moment, ...]:
    """Return the entries with one in the place of many of a kind: what one sensor says of many processes.

    Nothing is left out of the culprit and of the guard.
    """
    kinds: dict[tuple[str, TrackRole, str], list[TimelineEntry]] = {}
    for entry in entries:
        kinds.setdefault(_kind(entry), []).append(entry)
    moments = []
    for entry in entries:
        alike = kinds[_kind(entry)]
        if len(alike) <= _MOST_ALIKE or entry.role in (TrackRole.CULPRIT, TrackRole.GUARD):
            moments.append(Moment(entry))
        elif entry is alike[0]:
            moments.append(Moment(entry, len(alike) - 1, alike[-1].ms))
    return tuple(moments)


def _kind(entry: TimelineEntry) -> tuple[str, TrackRole, str]:
    return entry.source, entry.role, _NUMBER.sub("#", entry.text)


def _milliseconds(seconds: float) -> float:
    """Return milliseconds, rounded to the microsecond, without a negative zero."""
    return round(seconds * 1000, 3) + 0.0


def _names(incident: Incident, commands: messages.Commands) -> dict[ProcessKey, str]:
    """Return a name for each process of the evidence; processes that shared a pid get different names."""
    seen = dict.fromkeys(piece.process for piece in incident.evidence if piece.process is not None)
    pids = [process.pid for process in seen]
    names = {}
    for process in seen:
        start = f" started {process.start_ticks}" if pids.count(process.pid) > 1 else ""
        command = commands.get(process, "")
        names[process] = f"{process.pid}{start} {command}" if command else f"process {process.pid}{start}"
    return names


def _roles(incident: Incident) -> dict[ProcessKey, TrackRole]:
    groups = (
        (TrackRole.SURVIVOR, incident.survived),
        (TrackRole.VICTIM, incident.victims),
        (TrackRole.CANDIDATE, incident.candidates),
    )
    roles = {suspect.process: role for role, group in groups for suspect in group if suspect.process is not None}
    if incident.culprit is not None and incident.culprit.process is not None:
        roles[incident.culprit.process] = TrackRole.CULPRIT
    return roles


def _evidence_entry(
    piece: Evidence, began: float, roles: dict[ProcessKey, TrackRole], names: dict[ProcessKey, str]
) -> TimelineEntry:
    happened = piece.observed_at if piece.happened_at is None else piece.happened_at
    sensor = messages.SENSORS[piece.source]
    role = roles.get(piece.process, TrackRole.SENSOR) if piece.process else TrackRole.SENSOR
    return TimelineEntry(
        number=0,
        ms=_milliseconds(happened - began),
        off=piece.uncertainty * 1000,
        track=printable(names[piece.process]) if piece.process else sensor,
        role=role,
        text=printable(messages.observation(piece.what)),
        source=sensor,
        trust=piece.trust.value,
    )


def _groups(incident: Incident) -> dict[str, tuple[Suspect, ...]]:
    """Return the processes of an incident by the fact that names them."""
    groups = {
        "culprit": (incident.culprit,) if incident.culprit else (),
        "candidates": incident.candidates,
        "victims": incident.victims,
    }
    if incident.survived:
        groups["survived"] = incident.survived
    return groups


def _same_as(name: str, groups: Mapping[str, tuple[Suspect, ...]]) -> str | None:
    """Return the earlier group with the same processes; None if there is none."""
    for other, group in groups.items():
        if other == name:
            return None
        if set(group) == set(groups[name]):
            return other
    return None


def _processes(name: str, groups: Mapping[str, tuple[Suspect, ...]], commands: messages.Commands) -> str:
    group = groups[name]
    same = _same_as(name, groups)
    if len(group) > 1 and same is not None:
        return f"{len(group)}, the {same}"
    if len(group) <= _MOST_INLINE:
        return "; ".join(messages.suspect(suspect, commands) for suspect in group) or _MISSING.get(name, "")
    return str(len(group))


def _facts(
    record: RecordedIncident, groups: Mapping[str, tuple[Suspect, ...]], commands: messages.Commands
) -> tuple[tuple[str, str], ...]:
    incident = record.incident
    facts = [
        ("began", clock(incident.began + record.wall_offset)),
        ("lasted", f"{(incident.ended - incident.began) * 1000:.3f} ms"),
        ("class", incident.fault_class.value),
        ("Xids", ", ".join(map(str, incident.xids)) or "none"),
        ("GPU", incident.gpu or "not known"),
        ("lane", incident.lane or _no_lane(incident)),
        ("confidence", incident.confidence.value),
        *messages.in_flight(incident),
        *((name, _processes(name, groups, commands)) for name in groups),
        *_classes(groups, {client.process: client.service_class for client in record.clients}),
        *((f"version of {name}", version) for name, version in record.versions.items()),
    ]
    return tuple((printable(name), printable(value)) for name, value in facts)


def _no_lane(incident: Incident) -> str:
    return "more than one" if incident.candidates or incident.victims or incident.survived else "not known"


def _classes(
    groups: Mapping[str, Sequence[Suspect]], classes: Mapping[ProcessKey, str | None]
) -> tuple[tuple[str, str], ...]:
    """Return a fact, the service classes of each group; () where no client has one."""
    parts = []
    for name, group in groups.items():
        found = Counter(classes.get(suspect.process) for suspect in group if suspect.process is not None)
        named = [f"{each} {count}" if len(group) > 1 else each for each, count in found.items() if each is not None]
        if named:
            parts.append(f"{name}: {', '.join(named)}")
    return (("service classes", "; ".join(parts)),) if parts else ()
