"""The lifeline: how long an ended client's address space is kept, so that its kernels end without harm to the others.

A kernel that outlives its process' address space faults, and under MPS that ends all clients; one whose address space
is kept ends by itself, unnoticed (H200, driver 580.159.04). Nothing on the stock driver tells from outside whether an
ended client's work still runs; what was looked at is in docs/concepts/lifelines.md. So how the process ended decides,
and whether the GPUs have been idle since, which proves that nothing runs.
"""

from typing import Final

import msgspec

from mpsguard.evidence import ProcessEnded

IDLE_WINDOW: Final = 1.1
"""Seconds that NVML's utilisation looks back, with some to spare: one second at most (nvml.h)."""


class Hold(msgspec.Struct, frozen=True):
    """For how long to hold on to a client, unless the GPUs are seen idle before."""

    seconds: float
    """0: not at all."""
    beyond: bool = False
    """Whether to hold on when they are over, until the GPUs are seen idle or an operator lets go: its kernel may be one
    that never ends, and that nothing can end from outside."""


def hold_for(ended: ProcessEnded, *, crash_hold: float, exit_hold: float, beyond: bool = False) -> Hold:
    """For how long to hold on to a client that ended so; ``beyond`` is for those that did not end in order."""
    clean = ended.signal is None and ended.exit_code == 0
    return Hold(exit_hold) if clean else Hold(crash_hold, beyond)


def drained(ended_at: float, idle_seen_at: float | None) -> bool:
    """Whether a reading of no utilisation on any GPU, taken at ``idle_seen_at``, is of after the client's end alone."""
    return idle_seen_at is not None and idle_seen_at - IDLE_WINDOW >= ended_at
