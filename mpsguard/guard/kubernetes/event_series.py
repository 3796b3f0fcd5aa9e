"""Repetitions of one notice: a first Event, and then its series. Pure functions."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from mpsguard.guard.kubernetes.notices import Notice

LASTS: Final = 1800.0
"""Seconds after its last repetition that a series goes on; an API server forgets Events after an hour by default."""
MOST: Final = 1000
"""Series that are remembered; the one that was longest without a repetition is forgotten first."""
_NAME_KEPT: Final = 200
"""Characters of an object's name that begin that of its Event; a name has at most 253."""


class Series(msgspec.Struct, frozen=True):
    """An Event that was written."""

    namespace: str
    name: str
    count: int
    last: float
    """UNIX seconds of the last repetition."""


class NewEvent(msgspec.Struct, frozen=True):
    """Write a new Event."""

    notice: Notice
    series: Series


class RepeatedEvent(msgspec.Struct, frozen=True):
    """Raise the count of an Event."""

    notice: Notice
    series: Series


def next_step(known: Mapping[str, Series], notice: Notice) -> NewEvent | RepeatedEvent:
    """Return what to write for a notice: always the same, so that it can be written again after a crash."""
    before = known.get(notice.key)
    if before is None or notice.at - before.last > LASTS:
        return first(notice)
    return RepeatedEvent(notice, Series(before.namespace, before.name, before.count + 1, max(before.last, notice.at)))


def steps(known: Mapping[str, Series], notices: Iterable[Notice]) -> list[NewEvent | RepeatedEvent]:
    """Return what to write for notices, oldest first: of repetitions of one Event the last, with the count."""
    after = dict(known)
    found: dict[tuple[str, type], NewEvent | RepeatedEvent] = {}
    for notice in notices:
        step = next_step(after, notice)
        after[notice.key] = step.series
        found[step.series.name, type(step)] = step
    return list(found.values())


def first(notice: Notice) -> NewEvent:
    """Return the Event that begins a series."""
    mark = hashlib.sha256(f"{notice.key}\0{notice.incident}".encode()).hexdigest()[:16]
    beginning = re.sub(r"[^a-z0-9]+$", "", notice.subject.name[:_NAME_KEPT])
    # Events about nodes, which are in no namespace, are in this one (validation of the API server).
    return NewEvent(notice, Series(notice.subject.namespace or "default", f"{beginning}.{mark}", 1, notice.at))


def remembered(known: Iterable[tuple[str, Series]], now: float) -> dict[str, Series]:
    """Return the series that may still go on."""
    alive = sorted(
        ((key, series) for key, series in known if now - series.last <= LASTS), key=lambda each: each[1].last
    )
    return dict(alive[-MOST:])
