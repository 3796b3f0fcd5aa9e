"""Evidence groups: evidence that belongs together in time and place, before any culprit is sought.

A group forms around *signs*: observations of the GPU, a server or a lane that indicate a fault by themselves. The ends
of clients at about the same time join it, and so do other observations. An end without a sign near it is a group of its
own, which attracts no other evidence. Only the times of the events count, not the order in which evidence arrived.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from mpsguard import daemon_log
from mpsguard.evidence import (
    ClientCame,
    DeviceHealth,
    Evidence,
    FaultContained,
    LaneChanged,
    ProcessEnded,
    ServerSays,
    UvmFault,
    Xid,
    ZoneHit,
)
from mpsguard.triage import catalog
from mpsguard.triage.catalog import Level
from mpsguard.triage.client_history import ClientHistory, when

ECHO: Final = 1.0
"""Seconds after a fault's first sign within which its consequences are seen: the clients' own errors up to 0.43 s
(trap), their ends somewhat later (H200, driver 580.159.04)."""

_SIGNS: Final = 0.4
"""Seconds within which the driver and the server have reported all signs of one fault (0.15 s for a memory fault, from
the UVM event to NVML's); later signs belong to another fault."""

BEFORE: Final = 0.5
"""Seconds before the first sign within which the process that caused it may have ended (SIGKILL with a kernel in
flight: 0.15 s)."""

_BLUR: Final = 0.02
"""Seconds by which the order of two observations may be wrong: the logs' clocks tick in milliseconds, the kernel log's
clock is known to 10 ms."""

_TELLING: Final = frozenset({Level.CLIENT, Level.ENGINE, Level.DEVICE})


class EvidenceGroup(msgspec.Struct, frozen=True):
    """Evidence of one fault, or of several at the same time, oldest first."""

    began: float
    gpu: str | None
    anchors: tuple[Evidence, ...]
    """Its signs, and the ends that belong to them; in a group without a sign, the one end."""
    evidence: tuple[Evidence, ...]
    other_gpus: bool = False
    """Whether the driver reported a fault on another GPU at the same time: evidence without a GPU may be about it."""


def is_anchor(evidence: Evidence) -> bool:
    """Return whether an observation indicates a fault by itself."""
    what = evidence.what
    if isinstance(what, UvmFault):
        return what.fatal
    if isinstance(what, FaultContained | ZoneHit):
        return True
    if isinstance(what, Xid):
        return catalog.lookup(what.number).level in _TELLING
    if isinstance(what, ServerSays):
        return what.what in (daemon_log.BEGINS, daemon_log.CULPRIT, daemon_log.EXITED)
    if isinstance(what, LaneChanged):
        return what.state == "DOWN"
    if isinstance(what, DeviceHealth):
        return what.fatal
    return isinstance(what, ProcessEnded) and (what.signal is not None or what.execed is not None)


def identity(evidence: Evidence) -> tuple[str, object]:
    """Return a key that is equal for two copies of one observation."""
    return evidence.source.value, evidence.serial or msgspec.json.encode(evidence)


def rank(evidence: Evidence) -> tuple[float, str, bytes]:
    """Return the sort key of an observation: its time, then its content."""
    return when(evidence), evidence.source.value, msgspec.json.encode(evidence)


def in_order(evidence: Iterable[Evidence]) -> list[Evidence]:
    """Return each observation once, sorted by `rank`: the same list for every order of arrival."""
    by_identity: dict[object, tuple[tuple[float, str, bytes], Evidence]] = {}
    for each in evidence:
        name, place = identity(each), rank(each)
        kept = by_identity.get(name)
        # A record that was read twice, by two guards for example, may have two times of observation: the earlier one
        # counts.
        if kept is None or place < kept[0]:
            by_identity[name] = place, each
    return [each for _, each in sorted(by_identity.values(), key=lambda pair: pair[0])]


class Parts(msgspec.Struct, frozen=True):
    """Evidence by its part in the grouping, each in order of time."""

    signs: list[Evidence]
    ends: list[Evidence]
    zones: list[Evidence]
    """Accesses that a zone absorbed: an incident each (`zone_hits`), and the cause of no other."""
    others: list[Evidence]
    """Evidence that joins groups, and forms none."""

    @classmethod
    def of(cls, ordered: Iterable[Evidence]) -> "Parts":
        """Return the parts of evidence that is `in_order`."""
        parts = cls([], [], [], [])
        for each in ordered:
            found = parts.part(each)
            if found is not None:
                found.append(each)
        return parts

    def part(self, evidence: Evidence) -> list[Evidence] | None:
        """Return the list that an observation belongs to; None for an arrival, which only the client history uses."""
        if isinstance(evidence.what, ProcessEnded):
            return self.ends
        if isinstance(evidence.what, ZoneHit):
            return self.zones if evidence.process is not None else None
        if isinstance(evidence.what, ClientCame):
            return None
        return self.signs if is_anchor(evidence) else self.others


def evidence_groups(parts: Parts, history: ClientHistory) -> list[EvidenceGroup]:
    """Return the evidence groups, oldest first."""
    finishes = [
        when(each) for each in parts.others if isinstance(each.what, ServerSays) and each.what.what == daemon_log.ENDS
    ]
    clusters: list[list[Evidence]] = []
    for sign in parts.signs:
        home = _cluster_of(sign, clusters, finishes)
        if home is None:
            clusters.append([sign])
        else:
            home.append(sign)
    alone = _add_ends(clusters, parts.ends, history)
    times = [when(each) for each in parts.others]
    found = [_group(cluster, parts.others, times, clusters) for cluster in clusters]
    found += [EvidenceGroup(when(end), end.gpu, (end,), (end,)) for end in alone]
    found.sort(key=lambda group: group.began)
    return found


def _cluster_of(sign: Evidence, clusters: Sequence[list[Evidence]], finishes: Sequence[float]) -> list[Evidence] | None:
    at = when(sign)
    reach = ECHO if isinstance(sign.what, LaneChanged) else _SIGNS
    for cluster in reversed(clusters):
        began = when(cluster[0])
        if at - began > ECHO:
            return None
        if (
            at - began <= reach
            and _same_place(sign.gpu, _gpu_of(cluster))
            and not any(began <= finish < at - _BLUR for finish in finishes)
        ):
            return cluster
    return None


def _add_ends(clusters: Sequence[list[Evidence]], ends: Sequence[Evidence], history: ClientHistory) -> list[Evidence]:
    """Put each end into the cluster that it belongs to; return those by a signal that belong to none.

    The end of a process is seen long after its work failed: the driver holds the process until the GPU has recovered
    (0.07 to 0.08 s after the first sign, and after the server's recovery). So an end belongs to the fault before it, if
    the process was there by then; else to the fault after it.
    """
    starts = [when(cluster[0]) for cluster in clusters]
    found: dict[int, list[Evidence]] = {}
    alone = []
    for end in ends:
        at, stay = when(end), history.stay(end.process)
        after = bisect_right(starts, at)
        home = next(
            (
                index
                for index in reversed(range(bisect_left(starts, at - ECHO), after))
                if stay is None or stay.arrived <= starts[index]
            ),
            None,
        )
        if home is None and after < len(starts) and starts[after] - at <= BEFORE:
            home = after
        if home is not None:
            found.setdefault(home, []).append(end)
        elif is_anchor(end):
            alone.append(end)
    for index, theirs in found.items():
        clusters[index].extend(theirs)
        clusters[index].sort(key=when)
    return alone


def _group(
    cluster: Sequence[Evidence], others: Sequence[Evidence], times: Sequence[float], clusters: Sequence[list[Evidence]]
) -> EvidenceGroup:
    # An end that was no crash indicates no fault by itself, nor when the fault began.
    telling = [each for each in cluster if is_anchor(each)]
    began, gpu = when(telling[0]), _gpu_of(cluster)
    first, past = bisect_left(times, began - BEFORE), bisect_right(times, began + ECHO)
    near = [each for each in others[first:past] if _same_place(each.gpu, gpu)]
    elsewhere = any(
        isinstance(sign.what, Xid) and not _same_place(sign.gpu, gpu) and abs(when(sign) - began) <= ECHO
        for other in clusters
        if abs(when(other[0]) - began) <= 2 * ECHO
        for sign in other
    )
    return EvidenceGroup(began, gpu, tuple(telling), tuple(sorted([*cluster, *near], key=when)), elsewhere)


def _gpu_of(cluster: Iterable[Evidence]) -> str | None:
    return next((each.gpu for each in cluster if each.gpu is not None), None)


def _same_place(one: str | None, other: str | None) -> bool:
    """Return whether two observations may be of the same GPU; most sources do not name it."""
    return one is None or other is None or one == other
