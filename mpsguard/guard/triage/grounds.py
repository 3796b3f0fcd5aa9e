"""Grounds: every kind of evidence that can name a culprit, the processes that could forge it, and its consequences.

A verdict is never surer than its ground allows, and policy ends a process only on the grounds marked here.
docs/reference/grounds.md shows this table; a test compares the two.

A user (uid) is a tenant: a process that may trace another one, or write into its memory files, controls it. So forgery
by a process of the same user is listed here, but counts as the user's own action.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from mpsguard.guard.incident import Confidence, Ground


class Worth(msgspec.Struct, frozen=True):
    """The worth of one kind of evidence."""

    what: str
    sensor: str
    forger: str
    """The processes that could produce or alter it without being at fault."""
    confidence: Confidence
    """The highest confidence that it supports."""
    may_act: bool
    """Whether policy may end a process on it."""


GROUNDS: Final[Mapping[Ground, Worth]] = {
    Ground.UVM_QUEUE: Worth(
        "a fatal fault in the process' own UVM event queue", "uvm", "none", Confidence.PROVEN, may_act=True
    ),
    Ground.UVM_QUEUE_NEWCOMER: Worth(
        "the same within seconds of the process' coming, on a lane that clients had left empty, where the kernel log "
        "tells of a memory fault since then or is not known to be whole, or the address space of what left may "
        "have been kept (a lifeline; another user's)",
        "uvm, kmsg",
        "a client that ended before: its work may still be on the GPU",
        Confidence.LIKELY,
        may_act=False,
    ),
    Ground.CAME_BACK: Worth(
        "a page that faulted when a client ended alone faults again in a newcomer's queue",
        "uvm, kmsg",
        "a newcomer that faults at that page",
        Confidence.LIKELY,
        may_act=False,
    ),
    Ground.CONTAINED: Worth(
        "the patched module's list names a client of this guard, by pid and start time",
        "kmod",
        "none",
        Confidence.PROVEN,
        may_act=True,
    ),
    Ground.CONTAINED_PID: Worth(
        "the patched module's list names a process that this guard does not know as its client",
        "kmod",
        "one that made the address space, and gave it to the process at fault",
        Confidence.LIKELY,
        may_act=False,
    ),
    Ground.ZONE: Worth(
        "an access that the process' own zone table says was outside its allocation",
        "zones",
        "a process of the same user that may look into it",
        Confidence.PROVEN,
        may_act=True,
    ),
    Ground.OWN_DUMP: Worth(
        "an exception in its own GPU core dump, which no other process has opened",
        "gpucore",
        "none but itself",
        Confidence.PROVEN,
        may_act=True,
    ),
    Ground.OWN_DUMP_UNVERIFIED: Worth(
        "the same, of a writer that is known by the file's name and owner alone",
        "gpucore",
        "any process of the same user",
        Confidence.LIKELY,
        may_act=False,
    ),
    Ground.SENTINEL_PLACE: Worth(
        "the sentinel's dump: an SM stopped in a range like code that this client alone has reserved",
        "gpucore",
        "a process of the same user, which can see where that range is",
        Confidence.LIKELY,
        may_act=True,
    ),
    Ground.CLIENT_PLACE: Worth(
        "the same from the dump of a client of the lane",
        "gpucore",
        "any client of the lane",
        Confidence.LIKELY,
        may_act=False,
    ),
    Ground.LONE_KERNEL: Worth(
        "of all clients' own dumps, its own alone shows a kernel on the GPU",
        "gpucore",
        "any client of the lane, which leaves its kernel out",
        Confidence.LIKELY,
        may_act=False,
    ),
    Ground.ONLY_CLIENT: Worth(
        "elimination: no other client has been on the server since it started",
        "procs, serverlog, kmsg",
        "a process that the guard does not know as a client; who writes the server's log",
        Confidence.LIKELY,
        may_act=False,
    ),
    Ground.OWN_END: Worth(
        "its own end by a signal, with no fault of anybody's", "procs", "none", Confidence.PROVEN, may_act=False
    ),
    Ground.LEFT_SERVER: Worth(
        "elimination: it ended, and is the only client that the server did not tear down",
        "procs, serverlog",
        "who writes the server's log",
        Confidence.LIKELY,
        may_act=False,
    ),
    Ground.LEFT_ALONE: Worth(
        "elimination: it ended, no client was left, and the kernel tells of a fault of the server's",
        "procs, kmsg",
        "a process that the guard does not know as a client",
        Confidence.LIKELY,
        may_act=False,
    ),
    Ground.KERNEL_PID: Worth(
        "the kernel's line names a pid that is no client's, and no client was hit",
        "kmsg",
        "a process whose pid was given away since",
        Confidence.LIKELY,
        may_act=False,
    ),
    Ground.REPEATED_ALONE: Worth(
        "its work faulted again when repeated alone: it says so, and the kernel's line of a fault outside of MPS, of "
        "the kind of its lane's, names the process itself, and no other at once",
        "preload, kmsg",
        "none but itself",
        Confidence.PROVEN,
        may_act=True,
    ),
    Ground.REPEATED_ALONE_WORD: Worth(
        "its work faulted again when repeated alone, by its own word",
        "preload",
        "none but itself",
        Confidence.LIKELY,
        may_act=False,
    ),
}


HARMLESS: Final = frozenset({Ground.ZONE, Ground.CONTAINED, Ground.CONTAINED_PID, Ground.OWN_END})
"""Grounds of incidents after which the lane goes on: no context was lost."""


def worth(ground: Ground | None) -> Worth | None:
    """Return the worth of a ground; None for no ground, and for one that this version does not know."""
    return None if ground is None else GROUNDS.get(ground)


def table() -> str:
    """Return the grounds as a Markdown table, for docs/reference/grounds.md."""
    lines = [
        "| ground | what it is | sensor | could be forged by | at most | policy may act |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| `{ground.value}` | {each.what} | {each.sensor} | {each.forger} | {each.confidence.value} | "
        f"{'yes' if each.may_act else 'no'} |"
        for ground, each in GROUNDS.items()
    ]
    return "\n".join(lines) + "\n"
