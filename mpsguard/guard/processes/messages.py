"""Messages between the guard and its launcher: one SOCK_SEQPACKET packet each, MessagePack."""

from typing import Final

import msgspec

from mpsguard.guard.lanes.control_process import Launch

MAX_BYTES: Final = 1 << 16
"""Size of one packet. A lane takes some 300 bytes of the table, and an answer at most 4 KiB of the control daemon's
output: this is enough for 100 domains with a standby each, and below the kernel's default socket buffer (208 KiB)."""


class LaunchTable(msgspec.Struct, frozen=True):
    """The first packet: every lane the launcher may start."""

    lanes: tuple[Launch, ...]


class Start(msgspec.Struct, frozen=True, tag=True):
    """Start the control daemon of a lane in the table."""

    number: int
    """Chosen by the guard; the answer carries it."""
    lane: str


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Cancel a start. There is no answer to this message."""

    number: int


class Answer(msgspec.Struct, frozen=True):
    """The result of a start."""

    number: int
    error: str | None = None
    """Text of the LaneStartError; None if the control daemon is up."""


Request = Start | Cancel
