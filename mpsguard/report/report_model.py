"""The incident told in order: what every form of the report is laid out from."""

import time
from enum import StrEnum
from typing import Final

import msgspec

from mpsguard.evidence import Evidence
from mpsguard.incident import Incident
from mpsguard.linux.procfs import printable
from mpsguard.model import ProcessKey
from mpsguard.report import messages
from mpsguard.report.case import Advice, Case

_GUARD: Final = "mpsguard"
"""The track of what the guard itself decided and did."""


_MISSING: Final = {"culprit": "not known", "candidates": "none", "victims": "none"}
"""What stands for a group without a process."""


class Role(StrEnum):
    """Whom a moment, or a track, is about."""

    CULPRIT = "culprit"
    CANDIDATE = "candidate"
    VICTIM = "victim"
    SENSOR = "sensor"
    """The machine's own word, about nobody in particular."""
    GUARD = "guard"


class Moment(msgspec.Struct, frozen=True):
    """One thing that happened, milliseconds after the incident began."""

    number: int
    ms: float
    off: float
    """Milliseconds by which ``ms`` may be wrong, either way."""
    track: str
    role: Role
    text: str
    source: str
    trust: str


class ReportModel(msgspec.Struct, frozen=True):
    """All texts are printable; none is escaped for any format."""

    id: str
    verdict: str
    reason: str
    facts: tuple[tuple[str, str], ...]
    moments: tuple[Moment, ...]
    """In the order in which they happened."""
    tracks: tuple[tuple[str, Role], ...]
    """The processes and sensors of the moments, in order of appearance, the culprit's first."""
    steps: tuple[str, ...]
    left_out: int
    commands: tuple[str, ...] = ()
    """Command lines that the other texts may hold, as they stand there."""


def clock(unix: float) -> str:
    """A time as it is shown, in UTC like the ids."""
    milliseconds = round(unix * 1000)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(milliseconds // 1000))}.{milliseconds % 1000:03d} UTC"


def tell(case: Case, advice: Advice | None = None) -> ReportModel:
    """Lay an incident out; the caller may add ``advice`` on single Xids."""
    incident = case.incident
    commands = {client.process: client.command for client in case.clients}
    roles = _roles(incident)
    names = _names(incident, commands)
    unnumbered = [_seen(piece, incident.began, roles, names) for piece in incident.evidence]
    unnumbered += [
        Moment(
            number=0,
            ms=_milliseconds(decision.at - case.wall_offset - incident.began),
            off=0.0,
            track=_GUARD,
            role=Role.GUARD,
            text=printable(f"{decision.kind}: {decision.text}"),
            source=_GUARD,
            trust="",
        )
        for decision in case.decisions
    ]
    unnumbered.sort(key=lambda moment: moment.ms)
    moments = tuple(msgspec.structs.replace(moment, number=n) for n, moment in enumerate(unnumbered, 1))
    order = list(Role)
    tracks = dict.fromkeys((moment.track, moment.role) for moment in moments)
    return ReportModel(
        id=printable(case.id),
        verdict=printable(messages.verdict(incident, commands)),
        reason=printable(incident.reason),
        facts=_facts(case),
        moments=moments,
        tracks=tuple(sorted(tracks, key=lambda track: order.index(track[1]))),
        steps=tuple(printable(step) for step in messages.what_to_do(incident, advice or {})),
        left_out=case.evidence_left_out,
        commands=tuple(dict.fromkeys(printable(command) for command in commands.values() if command)),
    )


def _milliseconds(seconds: float) -> float:
    """To the microsecond; what rounds to nothing has no sign."""
    return round(seconds * 1000, 3) + 0.0


def _names(incident: Incident, commands: messages.Commands) -> dict[ProcessKey, str]:
    """What each process of the evidence is called; one that had its pid before or after it is called otherwise."""
    seen = dict.fromkeys(piece.process for piece in incident.evidence if piece.process is not None)
    pids = [process.pid for process in seen]
    names = {}
    for process in seen:
        start = f" started {process.start_ticks}" if pids.count(process.pid) > 1 else ""
        command = commands.get(process, "")
        names[process] = f"{process.pid}{start} {command}" if command else f"process {process.pid}{start}"
    return names


def _roles(incident: Incident) -> dict[ProcessKey, Role]:
    groups = ((Role.VICTIM, incident.victims), (Role.CANDIDATE, incident.candidates))
    roles = {who.process: role for role, group in groups for who in group if who.process is not None}
    if incident.culprit is not None and incident.culprit.process is not None:
        roles[incident.culprit.process] = Role.CULPRIT
    return roles


def _seen(piece: Evidence, began: float, roles: dict[ProcessKey, Role], names: dict[ProcessKey, str]) -> Moment:
    happened = piece.observed_at if piece.happened_at is None else piece.happened_at
    sensor = messages.SENSORS[piece.source]
    role = roles.get(piece.process, Role.SENSOR) if piece.process else Role.SENSOR
    return Moment(
        number=0,
        ms=_milliseconds(happened - began),
        off=piece.uncertainty * 1000,
        track=printable(names[piece.process]) if piece.process else sensor,
        role=role,
        text=printable(messages.observation(piece.what)),
        source=sensor,
        trust=piece.trust.value,
    )


def _facts(case: Case) -> tuple[tuple[str, str], ...]:
    incident = case.incident
    commands = {client.process: client.command for client in case.clients}
    groups = {
        "culprit": (incident.culprit,) if incident.culprit else (),
        "candidates": incident.candidates,
        "victims": incident.victims,
    }
    facts = [
        ("began", clock(incident.began + case.wall_offset)),
        ("lasted", f"{(incident.ended - incident.began) * 1000:.3f} ms"),
        ("class", incident.fault_class.value),
        ("Xids", ", ".join(map(str, incident.xids)) or "none"),
        ("GPU", incident.gpu or "not known"),
        ("lane", incident.lane or ("more than one" if incident.candidates or incident.victims else "not known")),
        ("confidence", incident.confidence.value),
        *messages.in_flight(incident),
        *(
            (name, "; ".join(messages.suspect(who, commands) for who in group) or _MISSING[name])
            for name, group in groups.items()
        ),
        *((f"version of {name}", version) for name, version in case.versions.items()),
    ]
    return tuple((printable(name), printable(value)) for name, value in facts)
