"""A session written down in memory that outlives the guard: the last state that was committed is always whole."""

import os
import struct
from typing import Final, Self

import msgspec

from mpsguard.linux import memfd
from mpsguard.vault import state_buffer
from mpsguard.vault.errors import QuotaError
from mpsguard.vault.region import Session
from mpsguard.vault.state_buffer import State

CAPACITY: Final = 64 << 20
"""Bytes that a session may take; what is not used takes up no memory."""

_VERSION: Final = 1
_WORD: Final = struct.Struct("=Q")


class Entry(msgspec.Struct, frozen=True):
    """What is written: the session, or None once it was released."""

    v: int
    session: Session | None


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Entry)


class LedgerError(Exception):
    """There is no session in it that this version can read."""


class Manifest:
    """Owns the descriptor of one session's ledger. It has the form of a record; see `mpsguard.vault.state_buffer`."""

    def __init__(self, fd: int, sequence: int) -> None:
        self.fd = fd
        self._sequence = sequence

    @classmethod
    def create(cls) -> Self:
        """An empty ledger."""
        return cls(memfd.create("mpsguard-ledger", state_buffer.size(CAPACITY), fixed=True), 0)

    @classmethod
    def open(cls, fd: int) -> tuple[Self, Session | None]:
        """Take over ``fd``; the session as it was last committed, None if it was released. LedgerError."""
        try:
            newest = state_buffer.latest(lambda at, length: os.pread(fd, length, at), CAPACITY)
            if newest is None:
                raise LedgerError("nothing was ever committed")
            entry = _decoder.decode(newest.state)
            if entry.v != _VERSION:
                raise LedgerError(f"written by another version ({entry.v})")
        except (msgspec.DecodeError, struct.error) as error:
            os.close(fd)
            raise LedgerError(f"cannot be read: {error}") from None
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, newest.sequence), entry.session

    def commit(self, session: Session | None) -> None:
        """Write the session down; when this returns it counts, and if it does not return the last one does.

        QuotaError if there is no room for it, in the ledger or in the machine's memory.
        """
        state = _encoder.encode(Entry(_VERSION, session))
        if len(state) > CAPACITY:
            raise QuotaError(f"the session takes {len(state)} bytes to write down; at most {CAPACITY}")
        sequence = self._sequence + 1
        at = state_buffer.slot_at(sequence, CAPACITY)
        slot = state_buffer.slot_bytes(State(sequence, 0, state))
        try:
            os.pwrite(self.fd, bytes(8), at)
            written = os.pwrite(self.fd, slot[8:], at + 8)
            if written != len(slot) - 8:
                raise QuotaError("no memory to write the session down")
            os.pwrite(self.fd, slot[:8], at)
        except OSError as error:
            raise QuotaError(f"the session cannot be written down: {error.strerror}") from None
        self._sequence = sequence

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)
