"""Handshake: learns the credentials of a greeted peer from the kernel, and from the peer what it wants."""

import asyncio
from contextlib import suppress

import msgspec

from mpsguard.guard.lanes import mps_protocol
from mpsguard.guard.lanes.mps_protocol import PeerKind, ProtocolError
from mpsguard.guard.metrics.registry import RefusalReason
from mpsguard.linux.identity import Credentials
from mpsguard.linux.sockets.packet_stream import PacketStream
from mpsguard.linux.sockets.seqpacket import Packet

_ADMITTED = (PeerKind.CLIENT, PeerKind.DEBUGGEE, PeerKind.UI)


class RefusedError(Exception):
    """The connection is closed, and counted under ``reason``."""

    def __init__(self, reason: RefusalReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Introduction(msgspec.Struct, frozen=True):
    """A peer's verified credentials and its connection type."""

    sender: Credentials
    kind: PeerKind
    greeting: bytes
    """The word with which the peer was greeted."""


async def introduce(front: PacketStream, greeting: bytes, deadline: float) -> Introduction | None:
    """Return the introduction of a peer that has been greeted.

    Args:
        front: the connection to the peer.
        greeting: the message that was sent to it, as the lane's control daemon would have.
        deadline: seconds for the whole introduction.

    Returns:
        None if the peer left after the greeting, as every CUDA client's first connection does.

    Raises:
        RefusedError: the peer did what no client or command line of protocol v2 does, or exceeded the deadline.
    """
    try:
        async with asyncio.timeout(deadline):
            return await _open(front, greeting)
    except TimeoutError:
        raise RefusedError("silent", f"nothing said for {deadline:g} s") from None
    except (BrokenPipeError, ConnectionResetError):
        return None


async def _open(front: PacketStream, greeting: bytes) -> Introduction | None:
    first = await front.receive(mps_protocol.WORD_LIMIT)
    if first.end:
        return None
    connected = front.peer()
    sender = checked(first, connected)
    if first.data != mps_protocol.credentials_word(greeting):
        raise RefusedError(
            "garbage",
            f"answered the greeting of protocol v2 with {first.data!r}; protocol v3 (-p 3, drivers 595 and later) "
            "is not supported: use the default protocol",
        )
    second = await front.receive(mps_protocol.WORD_LIMIT)
    if second.end:
        raise RefusedError("hung_up", "left after its credentials")
    checked(second, sender)
    try:
        kind = mps_protocol.peer_kind(second.data)
    except ProtocolError as error:
        raise RefusedError("kind", str(error)) from None
    if kind not in _ADMITTED:
        raise RefusedError("kind", f"connection type {kind} has no business in a public directory")
    return Introduction(sender, kind, greeting)


def checked(packet: Packet, expected: Credentials) -> Credentials:
    """Return the sender of a packet, which must be whole, without descriptors, and from the process ``expected``.

    Only the pid and the uid must agree: a process may change its group between connecting and speaking. The stream
    (`StrangerStream`) still owns the packet's descriptors.

    Raises:
        RefusedError: the packet is anything else.
    """
    if packet.fds:
        raise RefusedError("descriptors", f"{len(packet.fds)} file descriptors were sent")
    if packet.truncated:
        raise RefusedError("truncated", "a message longer than any of protocol v2, or with too many descriptors")
    if not packet.data:
        raise RefusedError("garbage", "an empty message")
    sender = packet.sender
    if sender is None or sender.pid <= 0 or (sender.pid, sender.uid) != (expected.pid, expected.uid):
        raise RefusedError("credentials", f"credentials {sender} are not those of the peer, {expected}")
    return msgspec.structs.replace(sender, container_root=expected.container_root)


async def gone(front: PacketStream) -> None:
    """Wait until a peer that should be silent sends something, or leaves."""
    with suppress(OSError):
        await front.readable()
