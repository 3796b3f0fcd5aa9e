"""The descriptors of one session: its manifest, its page, its state buffers, and the chunks of its regions."""

import errno
import os
from contextlib import ExitStack, suppress
from typing import Self

from mpsguard.linux.descriptors import memfd
from mpsguard.vault.server.manifest import Manifest
from mpsguard.vault.wire import checkpoint_requests, latency_counts, state_buffer
from mpsguard.vault.wire.checkpoint_requests import LastOutcomes
from mpsguard.vault.wire.errors import UnavailableError, UnknownRegionError
from mpsguard.vault.wire.latency_counts import LatencyCounts
from mpsguard.vault.wire.region import Carried, SessionRecord
from mpsguard.vault.wire.session_page import CheckpointRequest, OwnPage
from mpsguard.vault.wire.state_buffer import State


class SessionFds:
    """Owns all descriptors of one session."""

    def __init__(
        self,
        manifest: Manifest,
        page: OwnPage,
        buffer_fd: int | None,
        chunks: dict[int, tuple[int, ...]],
        spare: tuple[int, int] | None = None,
    ) -> None:
        """Take ownership of the descriptors.

        Args:
            manifest: the session's manifest.
            page: the session's page.
            buffer_fd: the state buffer; None if it could not be created.
            chunks: the chunks' descriptors by region id.
            spare: a later generation and the descriptor of its state buffer; see `make_spare`.
        """
        self.manifest = manifest
        self.page = page
        self._buffer = buffer_fd
        """None while it could not be created; the session then holds its content (`SessionRecord.carried`)."""
        self.chunks = chunks
        """By region id."""
        self._spare = spare

    @classmethod
    def create(cls, session: SessionRecord) -> Self:
        """Create the descriptors of a new session; raise OSError."""
        with ExitStack() as undo:
            manifest = Manifest.create()
            undo.callback(manifest.close)
            page = OwnPage.create(session.generation)
            undo.callback(page.close)
            made = cls(manifest, page, new_buffer(session), {})
            undo.pop_all()
        return made

    @property
    def kept(self) -> tuple[int, int]:
        """What the storage keeps under the session's name, besides the state buffers and regions."""
        return self.manifest.fd, self.page.fd

    def buffer(self, session: SessionRecord) -> int:
        """Return the state buffer of the session's generation, creating it if necessary.

        The descriptor stays owned by this object.

        Raises:
            OSError: there is none and none can be created.
        """
        if self._buffer is None:
            self._buffer = self._next_buffer(session)
        return self._buffer

    def state_copies(self, session: SessionRecord, *, writable: bool) -> tuple[int, int]:
        """Return copies for a client of the state buffer and of the page, which only the guard can write to.

        The caller owns both. ``writable``: the state buffer, for the writer.

        Raises:
            UnavailableError: the writer's state buffer is not stored yet, or a process has a lease on it.
            OSError: there is none, or no room for another descriptor.
        """
        if writable and session.carried is not None:
            # The next start writes into a state buffer that the manifest does not know as announced.
            raise UnavailableError("the state buffer is not stored yet; ask again")
        buffer, page = self.buffer(session), self.page.copy()
        try:
            return os.dup(buffer) if writable else memfd.read_only(buffer), page
        except BlockingIOError:
            os.close(page)
            raise UnavailableError("a process of its writer's holds the state buffer; ask again") from None
        except BaseException:
            os.close(page)
            raise

    def request_checkpoint(self, session: SessionRecord, request: CheckpointRequest) -> int:
        """Ask the writer for a checkpoint and return the request's number.

        Raises:
            UnknownRegionError: the program takes no checkpoints.
            UnavailableError: there is no writer.
        """
        if checkpoint_requests.page(session, self.chunks) is None:
            raise UnknownRegionError(
                f"the program of session {session.key.name!r} takes no checkpoints: it has not called "
                "checkpoints.of yet"
            )
        if session.writer is None:
            raise UnavailableError(f"session {session.key.name!r} has no writer that could take one")
        return self.page.ask(request)

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
        """Tell the clients that the next generation has begun, and return the last state that counts.

        The fenced writer sees it at its next publication.
        """
        # In this order: see Publisher.publish. Between the two are the full barriers with which the kernel takes a
        # reference of each page that it copies from.
        self.page.generation = session.generation + 1
        newest = self._latest(session)
        if newest is not None and newest.generation <= session.generation:
            return Carried(newest.sequence, newest.generation, newest.state)
        return session.carried or Carried(0, session.generation, None)

    def newest(self, session: SessionRecord) -> Carried:
        """Return the current forward state."""
        newest = self._latest(session)
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
        """Close all but the chunks' descriptors; return these, which the caller must close."""
        self.manifest.close()
        self.page.close()
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

    def _latest(self, session: SessionRecord) -> State | None:
        """Return what the state buffer has; None if nothing, or nothing that can be read: a fence must not fail."""
        with suppress(OSError):
            return None if self._buffer is None else last_state(self._buffer, session)
        return None


def last_state(fd: int, session: SessionRecord) -> State | None:
    """Return the newest state in a state buffer; a writer that spoils it makes that no longer."""
    most = state_buffer.GUARD_READS * session.capacity
    return state_buffer.latest(lambda at, length: os.pread(fd, length, at), session.capacity, most=most)


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
