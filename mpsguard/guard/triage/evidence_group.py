"""Evidence groups: evidence that belongs together in time and place, before any culprit is sought.

A group forms around *signs*: observations of the GPU, a server or a lane that indicate a fault by themselves. The ends
of clients at about the same time join it, and so do other observations. An end without a sign near it is a group of its
own, which attracts no other evidence. Only the times of the events count, not the order in which evidence arrived.

Signs of work that a client repeats alone, outside of MPS, and signs of lanes are never in one group, however near.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Final

import msgspec

from mpsguard.guard import daemon_log
from mpsguard.guard.evidence import (
    ClientCame,
    DeviceHealth,
    Evidence,
    FaultContained,
    LaneChanged,
    LogRead,
    ProcessEnded,
    SecondDriverCame,
    ServerSays,
    Source,
    UvmFault,
    WorkRepeated,
    Xid,
    ZoneHit,
)
from mpsguard.guard.triage import severity
from mpsguard.guard.triage.catalog import Level
from mpsguard.guard.triage.client_history import ClientHistory, when
from mpsguard.linux.identity import ProcessKey

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

_MEMORY_XID: Final = 31

_EXCEPTION_XID: Final = 13
_OF_CHANNEL: Final = re.compile(r"Graphics Exception: (?:channel 0x|ChID )[0-9a-f]+\b")

_NEXT_LINE: Final = 0.1
"""Seconds after a kernel line that names no owner within which the next one of the same fault does (2 ms seen)."""

TELLING: Final = frozenset({Level.CLIENT, Level.ENGINE, Level.DEVICE})
"""Levels at which an observation tells of a fault by itself."""


class _Owner(Enum):
    LANE = auto()
    """Work of a server's clients."""


_Owned = ProcessKey | _Owner | None
"""Which work a sign is of: what a client repeats alone, a lane's, or that is not said."""


class _Cluster:
    """The signs of one fault, and the ends that belong to it."""

    def __init__(self) -> None:
        self.signs: list[Evidence] = []
        self.owner: _Owned = None

    def add(self, sign: Evidence, owner: _Owned) -> None:
        self.signs.append(sign)
        self.owner = self.owner or owner

    @property
    def began(self) -> float:
        return when(self.signs[0])

    @property
    def gpu(self) -> str | None:
        return next((each.gpu for each in self.signs if each.gpu is not None), None)


class EvidenceGroup(msgspec.Struct, frozen=True):
    """Evidence of one fault, or of several at the same time, oldest first."""

    began: float
    gpu: str | None
    anchors: tuple[Evidence, ...]
    """Its signs, and the ends that belong to them; in a group without a sign, the one end."""
    evidence: tuple[Evidence, ...]
    other_gpus: bool = False
    """Whether the driver reported a fault on another GPU at the same time: evidence without a GPU may be about it."""
    author: ProcessKey | None = None
    """The client with work that faulted where it repeats it alone, outside of MPS; None for other work."""


def is_anchor(evidence: Evidence) -> bool:
    """Return whether an observation indicates a fault by itself."""
    what = evidence.what
    if isinstance(what, UvmFault):
        return what.fatal
    if isinstance(what, FaultContained | ZoneHit):
        return True
    if isinstance(what, Xid | DeviceHealth):
        found = severity.of(evidence)
        return found is not None and found.level in TELLING
    if isinstance(what, ServerSays):
        return what.what in (daemon_log.BEGINS, daemon_log.CULPRIT, daemon_log.EXITED)
    if isinstance(what, LaneChanged):
        return what.state == "DOWN"
    return isinstance(what, ProcessEnded) and (what.signal is not None or what.execed is not None)


def names_owner(line: Xid) -> bool:
    """Return whether the pid in a kernel line is that of the process with the faulting channel.

    Lines of Xid 13 about an SM can have the pid of another process with work at the time; the line about the channel
    comes last and has its owner's (two processes outside of MPS, one with a misaligned address; H100, 580.159.04).
    """
    return line.pid is not None and (line.number != _EXCEPTION_XID or _OF_CHANNEL.search(line.text) is not None)


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
        """Return the list that an observation belongs to; None for one that only the client history uses."""
        if isinstance(evidence.what, ProcessEnded):
            return self.ends
        if isinstance(evidence.what, ZoneHit):
            return self.zones if evidence.process is not None else None
        if isinstance(evidence.what, ClientCame | SecondDriverCame | WorkRepeated | LogRead):
            return None
        return self.signs if is_anchor(evidence) else self.others


def evidence_groups(parts: Parts, history: ClientHistory) -> list[EvidenceGroup]:
    """Return the evidence groups, oldest first."""
    finishes = [
        when(each) for each in parts.others if isinstance(each.what, ServerSays) and each.what.what == daemon_log.ENDS
    ]
    clusters: list[_Cluster] = []
    # Under MPS this line follows others; outside, it may be the only one.
    repeated = parts.others if history.repetitions.any() else ()
    outside = [each for each in repeated if isinstance(_owner(each, (), history), ProcessKey)]
    others = [each for each in parts.others if each not in outside] if outside else parts.others
    signs = sorted([*parts.signs, *outside], key=when) if outside else parts.signs
    for sign, owner in zip(signs, _owners(signs, history), strict=True):
        home = _cluster_of(sign, owner, clusters, finishes)
        if home is None:
            home = _Cluster()
            clusters.append(home)
        home.add(sign, owner)
    alone = _add_ends(clusters, parts.ends, history)
    times = [when(each) for each in others]
    starts = [cluster.began for cluster in clusters]
    found = [_group(cluster, others, times, _near(cluster, clusters, starts)) for cluster in clusters]
    found += [EvidenceGroup(when(end), end.gpu, (end,), (end,)) for end in alone]
    found.sort(key=lambda group: group.began)
    return found


def _owners(signs: Sequence[Evidence], history: ClientHistory) -> list[_Owned]:
    """Return of which work each sign is: a kernel line without an owner is of what a client repeats if the next is."""
    told = [when(sign) for sign in signs if isinstance(sign.what, ServerSays)]
    owners = [_owner(sign, told, history) for sign in signs]
    for index in reversed(range(len(signs))):
        sign = signs[index]
        if owners[index] is not None or not isinstance(sign.what, Xid) or sign.source is not Source.KERNEL_LOG:
            continue
        later = (each for each in range(index + 1, len(signs)) if _same_place(sign.gpu, signs[each].gpu))
        following = next((each for each in later if owners[each] is not None), None)
        if following is not None and when(signs[following]) - when(sign) <= _NEXT_LINE:
            owners[index] = None if owners[following] is _Owner.LANE else owners[following]
    return owners


def _owner(sign: Evidence, told: Sequence[float], history: ClientHistory) -> _Owned:
    """Return of which work a sign is; ``told``: when servers told of faults."""
    what, at = sign.what, when(sign)
    if not isinstance(what, Xid):
        return _Owner.LANE if isinstance(what, ServerSays | LaneChanged | UvmFault) else None
    if what.pid is None:
        return None
    of_server = what.pid in history.all_servers()
    if not of_server and not names_owner(what):
        return None
    stay = history.of_pid(what.pid, at)
    if stay is None or of_server or sign.source is not Source.KERNEL_LOG:
        return _Owner.LANE
    repetition = history.repetitions.of(stay.process)
    if repetition is None or not repetition.was_under_way(at):
        return _Owner.LANE
    # Under MPS this line, and no other one, names any client: then a server tells of the fault, too.
    near = what.number == _MEMORY_XID and bisect_left(told, at - BEFORE) < bisect_right(told, at + BEFORE)
    return _Owner.LANE if near else stay.process


def _cluster_of(
    sign: Evidence, owner: _Owned, clusters: Sequence[_Cluster], finishes: Sequence[float]
) -> _Cluster | None:
    at = when(sign)
    reach = ECHO if isinstance(sign.what, LaneChanged) else _SIGNS
    for cluster in reversed(clusters):
        began = cluster.began
        if at - began > ECHO:
            return None
        if (
            at - began <= reach
            and (owner is None or cluster.owner is None or owner == cluster.owner)
            and _same_place(sign.gpu, cluster.gpu)
            and not any(began <= finish < at - _BLUR for finish in finishes)
        ):
            return cluster
    return None


def _add_ends(clusters: Sequence[_Cluster], ends: Sequence[Evidence], history: ClientHistory) -> list[Evidence]:
    """Put each end into the cluster that it belongs to; return those by a signal that belong to none.

    The end of a process is seen long after its work failed: the driver holds the process until the GPU has recovered
    (0.07 to 0.08 s after the first sign, and after the server's recovery). So an end belongs to the fault before it, if
    the process was there by then; else to the fault after it. A fault outside of MPS ends no other process.
    """
    starts = [cluster.began for cluster in clusters]
    found: dict[int, list[Evidence]] = {}
    alone = []
    for end in ends:
        at, stay = when(end), history.stay(end.process)
        after = bisect_right(starts, at)
        home = next(
            (
                index
                for index in reversed(range(bisect_left(starts, at - ECHO), after))
                if (stay is None or stay.arrived <= starts[index]) and _may_end(clusters[index], end)
            ),
            None,
        )
        if home is None and after < len(starts) and starts[after] - at <= BEFORE and _may_end(clusters[after], end):
            home = after
        if home is not None:
            found.setdefault(home, []).append(end)
        elif is_anchor(end):
            alone.append(end)
    for index, theirs in found.items():
        clusters[index].signs.extend(theirs)
        clusters[index].signs.sort(key=when)
    return alone


def _may_end(cluster: _Cluster, end: Evidence) -> bool:
    return not isinstance(cluster.owner, ProcessKey) or cluster.owner == end.process


def _near(cluster: _Cluster, clusters: Sequence[_Cluster], starts: Sequence[float]) -> Sequence[_Cluster]:
    """Return the clusters that began at about the same time; ``starts``: when each began, ascending."""
    began = cluster.began
    return clusters[bisect_left(starts, began - 2 * ECHO) : bisect_right(starts, began + 2 * ECHO)]


def _group(
    cluster: _Cluster, others: Sequence[Evidence], times: Sequence[float], near: Sequence[_Cluster]
) -> EvidenceGroup:
    # An end that was no crash indicates no fault by itself, nor when the fault began.
    telling = [each for each in cluster.signs if is_anchor(each) or isinstance(each.what, Xid)]
    began, gpu = when(telling[0]), cluster.gpu
    first, past = bisect_left(times, began - BEFORE), bisect_right(times, began + ECHO)
    there = [each for each in others[first:past] if _same_place(each.gpu, gpu)]
    elsewhere = any(
        isinstance(sign.what, Xid) and not _same_place(sign.gpu, gpu) and abs(when(sign) - began) <= ECHO
        for other in near
        for sign in other.signs
    )
    author = cluster.owner if isinstance(cluster.owner, ProcessKey) else None
    whole = tuple(sorted([*cluster.signs, *there], key=when))
    return EvidenceGroup(began, gpu, tuple(telling), whole, elsewhere, author)


def _same_place(one: str | None, other: str | None) -> bool:
    """Return whether two observations may be of the same GPU; most sources do not name it."""
    return one is None or other is None or one == other
