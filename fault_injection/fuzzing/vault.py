"""The vault: its messages, the frames of its porters, and records that their writers may have spoilt."""

import struct
from random import Random
from typing import Any, Final

import msgspec

from fault_injection.fuzzing.mutation import (
    changed,
    changed_packet,
    index,
    number,
)
from fault_injection.fuzzing.surface import BrokenPromiseError, Surface
from mpsguard.vault.wire import state_buffer, wire
from mpsguard.vault.wire.region import Grant, LeaseRole, RegionLayout
from mpsguard.vault.wire.state_buffer import State

_LAYOUT: Final = RegionLayout((4096, 8192), va=1 << 40, gpu="GPU-6d2e0d2f-9c6c-4a8e-a3b7-0f7e6f6a1c11")
MESSAGES: Final = (
    wire.Hello(1, wire.VERSION, "session", LeaseRole.WRITER, 7, keep=1.5, grants=(Grant(65534, write=True),)),
    wire.Hello(1, wire.VERSION, "session", LeaseRole.STANDBY, 7, owner=1000, again=True),
    wire.Create(2, "region", _LAYOUT, b"metadata"),
    wire.Chunks(2, 2),
    wire.Seal(3, "region", (0, 1)),
    wire.SetMetadata(4, "region", b"more", 1),
    wire.Open(5, "region", RegionLayout((), va=4096)),
    wire.Describe(6, "region"),
    wire.Close(7, "region"),
    wire.Release(8, None),
    wire.Names(9, "a"),
    wire.Acquire(10),
    wire.Leave(11),
    wire.GetStateBuffer(12),
    wire.Ready(13),
    wire.HasWriter(14),
)
_PLAIN: Final[tuple[dict[str, Any], ...]] = tuple(
    msgspec.to_builtins(each, builtin_types=(bytes,)) for each in MESSAGES
)
_PACKETS: Final = tuple(wire.encode(each) for each in MESSAGES)
FIELDS: Final = tuple(sorted({name for each in _PLAIN for name in each} | {"sizes", "va", "gpu", "uid", "write"}))


def packet(chance: Random) -> bytes:
    """A client's message, changed as a message, as bytes, or by something deep in it."""
    data = changed_packet(chance, _PLAIN, _PACKETS, FIELDS, as_messages=12, deepest=wire.MAX_PACKET)
    return data[: wire.MAX_PACKET]


class Messages(Surface[bytes]):
    """What a client says."""

    name = "vault"
    share = 150

    def make(self, chance: Random) -> bytes:
        """A packet."""
        return packet(chance)

    def feed(self, case: bytes) -> None:
        """Decode it as a conversation does; what is understood can be said again."""
        try:
            request = wire.decode_request(case)
        except msgspec.DecodeError:
            return
        if wire.decode_request(wire.encode(request)) != request:
            raise BrokenPromiseError(f"{request} does not come back")


_CAPACITY: Final = 200
_STATES: Final = tuple(State(sequence, 1 + sequence // 4, b"state" * sequence) for sequence in (0, 1, 5, 8, 13, 30))


class Records(Surface[bytes]):
    """The forward state, in memory that its writer can spoil while it is read."""

    name = "vault records"
    share = 30

    def make(self, chance: Random) -> bytes:
        """A record of which some slots are right, and some bytes wrong."""
        memory = bytearray(state_buffer.size(_CAPACITY))
        for at, piece in state_buffer.blank(_CAPACITY, 1, _STATES[index(chance, len(_STATES))]):
            memory[at : at + len(piece)] = piece
        for state in _STATES[: index(chance, len(_STATES))]:
            piece = state_buffer.slot_bytes(state)
            at = state_buffer.slot_at(state.sequence, _CAPACITY)
            memory[at : at + len(piece)] = piece
        for _ in range(index(chance, 4)):
            at = 8 * index(chance, len(memory) // 8)
            memory[at : at + 8] = struct.pack("=Q", number(chance) & ((1 << 64) - 1))
        return bytes(memory) if chance.random() < 0.7 else changed(chance, bytes(memory))

    def feed(self, case: bytes) -> None:
        """Read the newest state."""

        def read(at: int, length: int) -> bytes:
            # As pread(2) of a memory file that is sealed: as many bytes as were asked for.
            return case[at : at + length].ljust(length, b"\0")

        state = state_buffer.latest(read, _CAPACITY)
        if state is not None and len(state.state) > _CAPACITY:
            raise BrokenPromiseError(f"{len(state.state)} bytes of state")
