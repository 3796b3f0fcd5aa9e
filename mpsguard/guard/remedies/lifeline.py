"""The lifeline: how long an ended client's address space is kept, so that its kernels end without harm to the others.

A kernel that outlives its process' address space faults, and under MPS that ends all clients; if the address space is
kept, the kernel ends by itself, unnoticed (H200, driver 580.159.04). The stock driver does not tell whether an ended
client's work still runs (docs/concepts/lifelines.md lists what was tried). So the decision rests on how the process
ended, and on whether the GPUs have been idle since, which proves that nothing runs.
"""

from typing import Final

import msgspec

from mpsguard.guard.evidence import ProcessEnded

IDLE_WINDOW: Final = 1.1
"""Seconds covered by a reading of NVML's utilisation, with a margin: the sample period is at most 1 s (nvml.h)."""


class Hold(msgspec.Struct, frozen=True):
    """How long to keep a client's address space, unless the GPUs are seen idle before."""

    seconds: float
    """0: not at all."""
    beyond: bool = False
    """Whether to keep it even longer, until the GPUs are seen idle or an operator releases it: its kernel may never
    end, and nothing can end it from outside."""


def hold_for(ended: ProcessEnded, *, crash_hold: float, exit_hold: float, beyond: bool = False) -> Hold:
    """Return how long to keep the address space of a client after its end.

    Args:
        ended: how it ended.
        crash_hold: seconds after an end by a signal or with a status other than 0.
        exit_hold: seconds after an exit with status 0.
        beyond: see `Hold`; only for clients that did not exit with status 0.
    """
    clean = ended.signal is None and ended.exit_code == 0
    return Hold(exit_hold) if clean else Hold(crash_hold, beyond)


def drained(ended_at: float, idle_seen_at: float | None) -> bool:
    """Return whether a reading of no utilisation at ``idle_seen_at`` covers only time after the client's end."""
    return idle_seen_at is not None and idle_seen_at - IDLE_WINDOW >= ended_at
