"""The descriptors of one session: its manifest, its state buffers, and the chunks of its regions."""

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from mpsguard.linux.descriptors import memfd
from mpsguard.vault import checkpoint_requests, latency_counts, state_buffer
from mpsguard.vault.checkpoint_requests import LastOutcomes
from mpsguard.vault.latency_counts import LatencyCounts
from mpsguard.vault.manifest import Manifest
from mpsguard.vault.region import Carried, SessionRecord
from mpsguard.vault.state_buffer import State


class SessionFds:
    """Owns all descriptors of one session."""

    def __init__(
        self,
        manifest: Manifest,
        buffer_fd: int | None,
        chunks: dict[int, tuple[int, ...]],
        spare: tuple[int, int] | None = None,
    ) -> None:
        """Take ownership of the descriptors.

        Args:
            manifest: the session's manifest.
            buffer_fd: the state buffer; None if it could not be created.
            chunks: the chunks' descriptors by region id.
            spare: a later generation and the descriptor of its state buffer; see `make_spare`.
        """
        self.manifest = manifest
        self._buffer = buffer_fd
        """None while it could not be created; the session then holds its content (`SessionRecord.carried`)."""
        self.chunks = chunks
        """By region id."""
        self._spare = spare

    @classmethod
    def create(cls, session: SessionRecord) -> Self:
        """Create the descriptors of a new session; raise OSError."""
        manifest = Manifest.create()
        try:
            return cls(manifest, new_buffer(session), {})
        except BaseException:
            manifest.close()
            raise

    def buffer(self, session: SessionRecord) -> int:
        """Return the state buffer of the session's generation, creating it if necessary.

        The descriptor stays owned by this object.

        Raises:
            OSError: there is none and none can be created.
        """
        if self._buffer is None:
            self._buffer = self._next_buffer(session)
        return self._buffer

    @property
    def spare_generation(self) -> int | None:
        """Generation of the spare state buffer, or None."""
        return None if self._spare is None else self._spare[0]

    def make_spare(self, session: SessionRecord) -> int:
        """Create an empty state buffer for the next generation, replacing any other spare; raise OSError.

        The returned descriptor stays owned by this object.
        """
        self._close_spare()
        fd = memfd.create("mpsguard-state", state_buffer.size(session.capacity), fixed=True)
        self._spare = (session.generation + 1, fd)
        return fd

    def has(self, fd: int) -> bool:
        """Return whether ``fd`` is the current or the spare state buffer."""
        return fd in (self._buffer, self._spare and self._spare[1])

    def end_generation(self, session: SessionRecord) -> Carried:
        """Mark the current state buffer as over and return the last state that counts.

        The fenced writer sees the mark at its next publication.
        """
        if self._buffer is not None:
            word_at, over = state_buffer.OVER
            # In this order: see Publisher.publish.
            os.pwrite(self._buffer, over, word_at)
            newest = state_buffer.latest(self._read, session.capacity)
            if newest is not None and newest.generation <= session.generation:
                return Carried(newest.sequence, newest.generation, newest.state)
        return session.carried or Carried(0, session.generation, None)

    def newest(self, session: SessionRecord) -> Carried:
        """Return the current forward state."""
        newest = None if self._buffer is None else state_buffer.latest(self._read, session.capacity)
        if newest is not None:
            return Carried(newest.sequence, newest.generation, newest.state)
        return session.carried or Carried(0, session.generation, None)

    def latency(self, session: SessionRecord) -> LatencyCounts | None:
        """Return the latencies of the requests that the program marks, or None."""
        return latency_counts.read(session, self.chunks)

    def checkpoints(self, session: SessionRecord) -> LastOutcomes:
        """Return what the program says of its last checkpoints."""
        return checkpoint_requests.outcomes(session, self.chunks)

    def renew_buffer(self, session: SessionRecord) -> None:
        """Replace the state buffer by one for the session's generation, filled with the carried state.

        If there is no memory for it now, it is created on first use.
        """
        # Close the old one first: this works even if no descriptor is left.
        self._close_buffer()
        if self.spare_generation != session.generation:
            self._close_spare()
        with suppress(OSError):
            self._buffer = self._next_buffer(session)

    def close(self) -> tuple[int, ...]:
        """Close the manifest and the state buffers; return the chunks' descriptors, which the caller must close."""
        self.manifest.close()
        self._close_buffer()
        self._close_spare()
        chunks = tuple(fd for fds in self.chunks.values() for fd in fds)
        self.chunks = {}
        return chunks

    def _next_buffer(self, session: SessionRecord) -> int:
        if self._spare is None or self._spare[0] != session.generation:
            return new_buffer(session)
        fd = self._spare[1]
        fill_buffer(fd, session)
        self._spare = None
        return fd

    def _close_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            os.close(spare[1])

    def _close_buffer(self) -> None:
        fd, self._buffer = self._buffer, None
        if fd is not None:
            os.close(fd)

    def _read(self, at: int, length: int) -> bytes:
        assert self._buffer is not None
        return os.pread(self._buffer, length, at)


def new_buffer(session: SessionRecord) -> int:
    """Create a state buffer for the session's generation; the caller owns it. Raise OSError."""
    fd = memfd.create("mpsguard-state", state_buffer.size(session.capacity), fixed=True)
    try:
        fill_buffer(fd, session)
    except BaseException:
        os.close(fd)
        raise
    return fd


def fill_buffer(fd: int, session: SessionRecord) -> None:
    """Write the header and the carried state into a state buffer before it is published; raise OSError."""
    carried = session.carried
    first = None
    if carried is not None and carried.state is not None:
        first = State(carried.sequence, carried.generation, carried.state)
    for at, piece in state_buffer.blank(session.capacity, session.generation, first):
        if os.pwrite(fd, piece, at) != len(piece):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def copies(fds: Sequence[int]) -> tuple[int, ...]:
    """Return close-on-exec duplicates, owned by the caller.

    Raises:
        OSError: (EMFILE) there is no room for all of them; none was created.
    """
    made: list[int] = []
    try:
        made.extend(os.dup(fd) for fd in fds)
    except BaseException:
        for fd in made:
            os.close(fd)
        raise
    return tuple(made)
