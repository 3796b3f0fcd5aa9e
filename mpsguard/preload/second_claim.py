"""The claim of a program under the preload about its second driver: would it live through a fault, has it gone over?

It lies at the end of the header of the program's zone table (mpsguard/preload/zone_table.h), written by
mpsguard/preload/second/claim.c. It is the program's word about itself: whatever it says can only be wrong about that
program, and nothing of it is text of the program's own.
"""

import os
import struct
from enum import IntEnum
from typing import Final

import msgspec

from mpsguard.preload import zone_table
from mpsguard.preload.zone_table import TableError

AT: Final = 4032
"""Where it begins in the table."""
LAYOUT: Final = struct.Struct("<IBBBB32s")
"""Sequence number (odd while it is written), phase, mode (0 off, 1 cold, 2 hot; with `_MAKES_READY`), repetition, how
often it has gone over, the reason's name."""
_MAKES_READY: Final = 0x80
_MODES: Final = ("off", "cold", "hot")

# fmt: off
REASONS: Final = frozenset({
    "arrays", "batched_copies", "changed_variables", "device_heap", "device_settings", "device_variables",
    "driver_checkpoints", "enumerated_functions", "graphs", "host_callbacks", "host_memory_in_kernels",
    "image_options", "launch_events", "log_full", "managed_memory", "memory_pools", "modules_from_files",
    "no_addresses", "no_copies_left", "no_memory", "no_other_lane", "no_spare_memory", "not_repeated", "old_launches",
    "pinned_memory", "placed_reservations", "plain_memory", "proven_culprit", "repeated_fault", "replay_diverged",
    "second_failed", "several_contexts", "several_devices", "shared_with_others",
    "stream_memory_operations", "unknown", "unlogged", "unread_modules", "work_in_flight",
})
# fmt: on
"""Why a program is not served (mpsguard/preload/second/reasons.h, docs/reference/second-driver.md)."""
OTHER: Final = "other"
"""A reason that this version does not know."""


class ClaimPhase(IntEnum):
    """How far a program has come."""

    NONE = 0
    """It has no second driver, or no context yet."""
    WAITING = 1
    """Before a fault."""
    GOING_OVER = 2
    """A fault was met, and the next driver is being brought to what the one before had."""
    WENT_OVER = 3
    """It goes on after a fault, in another driver; it waits again."""
    REFUSED = 4
    """A fault was met, and the program has its error."""
    MOVED = 5
    """It went on in another driver without a fault, as the guard has asked it to (docs/concepts/moves.md); it waits
    again."""


class RepetitionState(IntEnum):
    """What became of a program's work in flight, which it repeats alone (docs/concepts/repetition.md)."""

    NONE = 0
    UNDER_WAY = 1
    COMPLETED = 2
    FAULTED = 3
    """In work that was in flight at the fault."""
    NO_RESULT = 4


class SecondClaim(msgspec.Struct, frozen=True):
    """What a program says."""

    phase: ClaimPhase
    mode: str
    """off, cold or hot."""
    reason: str
    """Why it would not live, or has not; "" if nothing is in the way."""
    repetition: RepetitionState = RepetitionState.NONE
    times: int = 0
    """How often it has gone over, after a fault or without one; the last 8 bits of that."""
    makes_ready: bool = False
    """Whether it makes its next driver ready, ahead of a fault."""

    @property
    def waits(self) -> bool:
        """Return whether it works, and no fault is on its way."""
        return self.phase in (ClaimPhase.WAITING, ClaimPhase.WENT_OVER, ClaimPhase.MOVED)

    @property
    def may_go_over(self) -> bool:
        """Return whether the program says that it would live, or is on its way."""
        return (self.waits or self.phase is ClaimPhase.GOING_OVER) and not self.reason


def read(fd: int) -> SecondClaim | None:
    """Return the claim in a zone table, or None where there is none; `TableError` if ``fd`` is no such table."""
    zone_table.check_is_memfd(fd)
    zone_table.check_head(os.pread(fd, zone_table.HEADER.size, 0))
    return decode(zone_table.read_block(fd, LAYOUT.size, AT, "the claim"))


def decode(block: bytes) -> SecondClaim | None:
    """Return the claim in its bytes; None if there is none. `TableError` if it is half written, or makes no sense."""
    if len(block) < LAYOUT.size:
        raise TableError("too short for a claim")
    sequence, phase, modes, repetition, times, name = LAYOUT.unpack(block)
    mode = modes & ~_MAKES_READY
    if sequence % 2 or phase not in set(ClaimPhase) or mode >= len(_MODES):
        raise TableError(f"a claim with sequence {sequence}, phase {phase}, mode {mode}")
    if phase == ClaimPhase.NONE:
        return None
    text = name.rstrip(b"\0").decode("ascii", "replace")
    reason = text if text in REASONS else OTHER if text else ""
    known = repetition in set(RepetitionState)
    outcome = RepetitionState(repetition) if known else RepetitionState.NO_RESULT
    makes_ready = bool(modes & _MAKES_READY)
    if times == 0 and phase in (ClaimPhase.WENT_OVER, ClaimPhase.MOVED):
        # A program that was started with a preload by which it goes over once.
        times, reason = 1, "no_copies_left"
    return SecondClaim(ClaimPhase(phase), _MODES[mode], reason, outcome, times, makes_ready)


def encode(claim: SecondClaim, sequence: int) -> bytes:
    """Return the bytes of a claim; ``sequence`` is odd while it is written."""
    mode = _MODES.index(claim.mode) | (_MAKES_READY if claim.makes_ready else 0)
    return LAYOUT.pack(sequence, claim.phase, mode, claim.repetition, claim.times, claim.reason.encode())
