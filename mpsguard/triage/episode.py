"""Episodes: evidence that belongs together in time and place, before anybody asks whose fault it was.

An episode grows around *anchors*, observations that tell of a fault by themselves; what else happened close by joins
it. The order in which evidence arrived plays no part: only when things happened does.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from mpsguard.evidence import (
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
from mpsguard.triage.population import Population, when

ECHO: Final = 1.0
"""Seconds after its first sign within which what comes of a fault is seen: the clients' own errors up to 0.43 s (trap),
their ends somewhat later (H200, driver 580.159.04)."""

_SIGNS: Final = 0.4
"""Seconds within which the driver and the server have said all they say of one fault (0.15 s for a memory fault, from
the UVM event to NVML's); what they say later is of another one."""

BEFORE: Final = 0.5
"""Seconds before the first sign within which a process may have ended whose work then caused it (SIGKILL with a kernel
in flight: 0.15 s)."""

_BLUR: Final = 0.02
"""Seconds by which the order of two observations may be wrong: the logs' clocks tick in milliseconds, the kernel log's
is known to 10 ms."""

_TELLING: Final = frozenset({Level.CLIENT, Level.ENGINE, Level.DEVICE})


class Episode(msgspec.Struct, frozen=True):
    """Evidence of one fault, or of several at the same time, oldest first."""

    began: float
    gpu: str | None
    anchors: tuple[Evidence, ...]
    evidence: tuple[Evidence, ...]


def is_anchor(evidence: Evidence) -> bool:
    """Whether an observation tells of a fault by itself."""
    what = evidence.what
    if isinstance(what, UvmFault):
        return what.fatal
    if isinstance(what, FaultContained | ZoneHit):
        return True
    if isinstance(what, Xid):
        return catalog.lookup(what.number).level in _TELLING
    if isinstance(what, ServerSays):
        return what.what in ("fault_begins", "culprit", "server_exited")
    if isinstance(what, LaneChanged):
        return what.state == "DOWN"
    if isinstance(what, DeviceHealth):
        return what.fatal
    return isinstance(what, ProcessEnded) and (what.signal is not None or what.execed is not None)


def in_order(evidence: Iterable[Evidence]) -> list[Evidence]:
    """Evidence by time, each observation once, ties broken by content: the same list for every order of arrival."""
    by_identity: dict[object, Evidence] = {}
    for each in evidence:
        identity = (each.source, each.serial) if each.serial else (each.source, msgspec.json.encode(each))
        kept = by_identity.get(identity)
        # The same record read twice, by two guards say, may have been observed at two times: the earlier one counts.
        if kept is None or _rank(each) < _rank(kept):
            by_identity[identity] = each
    return sorted(by_identity.values(), key=_rank)


def episodes(evidence: Sequence[Evidence], population: Population) -> list[Episode]:
    """The episodes in evidence that is `in_order`, oldest first."""
    ends = [when(each) for each in evidence if isinstance(each.what, ServerSays) and each.what.what == "fault_ends"]
    clusters: list[list[Evidence]] = []
    # What a zone absorbed is an incident by itself (`absorbed`) and the cause of nothing.
    for anchor in (each for each in evidence if is_anchor(each) and not isinstance(each.what, ZoneHit)):
        home = next((cluster for cluster in reversed(clusters) if _belongs(anchor, cluster, ends, population)), None)
        if home is None:
            clusters.append([anchor])
        else:
            home.append(anchor)
    return [_episode(cluster, evidence) for cluster in clusters]


def _belongs(anchor: Evidence, cluster: Sequence[Evidence], ends: Sequence[float], population: Population) -> bool:
    began, at = when(cluster[0]), when(anchor)
    about_process = isinstance(anchor.what, ProcessEnded | LaneChanged)
    if at - began > (ECHO if about_process else _SIGNS) or not _same_place(anchor.gpu, _gpu_of(cluster)):
        return False
    member = population.member(anchor.process) if isinstance(anchor.what, ProcessEnded) else None
    if member is not None:
        # A process is seen to have ended long after its work went wrong: the driver holds it until the GPU is back
        # (0.07 to 0.08 s after the first sign, and after the server's recovery).
        return member.came <= began
    return not any(began <= end < at - _BLUR for end in ends)


def _episode(cluster: Sequence[Evidence], evidence: Sequence[Evidence]) -> Episode:
    began, gpu = when(cluster[0]), _gpu_of(cluster)
    anchors = {id(anchor) for anchor in cluster}
    near = tuple(
        each
        for each in evidence
        if id(each) in anchors
        or (not is_anchor(each) and began - BEFORE <= when(each) <= began + ECHO and _same_place(each.gpu, gpu))
    )
    return Episode(began, gpu, tuple(cluster), near)


def _gpu_of(cluster: Iterable[Evidence]) -> str | None:
    return next((each.gpu for each in cluster if each.gpu is not None), None)


def _same_place(one: str | None, other: str | None) -> bool:
    """Whether two observations may be of the same GPU; most sources do not say."""
    return one is None or other is None or one == other


def _rank(evidence: Evidence) -> tuple[float, str, bytes]:
    return when(evidence), evidence.source.value, msgspec.json.encode(evidence)
