"""A session saved in memory that outlives the guard: the last committed state can always be read as a whole."""

import os
import struct
from typing import Final, Self

import msgspec

from mpsguard.linux.descriptors import memfd
from mpsguard.vault.wire import state_buffer
from mpsguard.vault.wire.errors import QuotaError
from mpsguard.vault.wire.region import SessionRecord
from mpsguard.vault.wire.state_buffer import State

CAPACITY: Final = 64 << 20
"""Maximum size of a saved session in bytes; unused bytes take up no memory."""

_VERSION: Final = 1


class Entry(msgspec.Struct, frozen=True):
    """The saved content: the session, or None after its release."""

    v: int
    session: SessionRecord | None


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Entry)


class ManifestError(Exception):
    """The manifest contains no session that this version can read."""


class Manifest:
    """Owns the descriptor of one session's manifest. Its format is that of `mpsguard.vault.wire.state_buffer`."""

    def __init__(self, fd: int, sequence: int) -> None:
        self.fd = fd
        self._sequence = sequence

    @classmethod
    def create(cls) -> Self:
        """Create an empty manifest."""
        return cls(memfd.create("mpsguard-manifest", state_buffer.size(CAPACITY), fixed=True), 0)

    @classmethod
    def open(cls, fd: int) -> tuple[Self, SessionRecord | None]:
        """Take ownership of ``fd`` and return the manifest with the session as last committed (None: released).

        Raises:
            ManifestError: there is no readable session; ``fd`` has been closed.
        """
        try:
            newest = state_buffer.latest(lambda at, length: os.pread(fd, length, at), CAPACITY)
            if newest is None:
                raise ManifestError("nothing was ever committed")
            entry = _decoder.decode(newest.state)
            if entry.v != _VERSION:
                raise ManifestError(f"written by another version ({entry.v})")
        except (msgspec.DecodeError, struct.error) as error:
            os.close(fd)
            raise ManifestError(f"cannot be read: {error}") from None
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, newest.sequence), entry.session

    def commit(self, session: SessionRecord | None) -> None:
        """Save the session atomically; None marks it as released.

        Raises:
            QuotaError: no room in the manifest or in the machine's memory; the previous state remains valid.
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
        """Close the descriptor."""
        os.close(self.fd)
