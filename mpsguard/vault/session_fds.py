"""The descriptors of one session: its ledger, the record of its forward state, and the chunks of its regions."""

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from mpsguard.linux import memfd
from mpsguard.vault import state_buffer as record
from mpsguard.vault.manifest import Manifest
from mpsguard.vault.region import Carried, Session
from mpsguard.vault.state_buffer import State


class SessionFds:
    """Owns them all."""

    def __init__(
        self,
        ledger: Manifest,
        record_fd: int | None,
        chunks: dict[int, tuple[int, ...]],
        spare: tuple[int, int] | None = None,
    ) -> None:
        """``spare``: see `make_spare`; a generation, and the descriptor of its record."""
        self.ledger = ledger
        self._record = record_fd
        """None while it could not be made: the session knows what is to be in it."""
        self.chunks = chunks
        """By the region's id."""
        self._spare = spare

    @classmethod
    def create(cls, session: Session) -> Self:
        """For a new session; OSError."""
        ledger = Manifest.create()
        try:
            return cls(ledger, new_record(session), {})
        except BaseException:
            ledger.close()
            raise

    def record(self, session: Session) -> int:
        """The record of the session's generation, which stays ours; OSError if there is none and none can be made."""
        if self._record is None:
            self._record = self._next_record(session)
        return self._record

    @property
    def spare_generation(self) -> int | None:
        """Of the record that there is for a generation to come."""
        return None if self._spare is None else self._spare[0]

    def make_spare(self, session: Session) -> int:
        """Make the record of the generation that comes next, in the place of any other: empty, and ours. OSError."""
        self._close_spare()
        fd = memfd.create("mpsguard-record", record.size(session.capacity), fixed=True)
        self._spare = (session.generation + 1, fd)
        return fd

    def has(self, fd: int) -> bool:
        """Whether that is the record, or the one to come."""
        return fd in (self._record, self._spare and self._spare[1])

    def cut(self, session: Session) -> Carried:
        """End the record that is: its writer hears of it, and what it has published until now is what counts."""
        if self._record is not None:
            word_at, over = record.OVER
            # In this order: see Publisher.publish.
            os.pwrite(self._record, over, word_at)
            newest = record.latest(self._read, session.capacity)
            if newest is not None and newest.generation <= session.generation:
                return Carried(newest.sequence, newest.generation, newest.state)
        return session.carried or Carried(0, session.generation, None)

    def newest(self, session: Session) -> Carried:
        """The forward state at this moment."""
        newest = None if self._record is None else record.latest(self._read, session.capacity)
        if newest is not None:
            return Carried(newest.sequence, newest.generation, newest.state)
        return session.carried or Carried(0, session.generation, None)

    def renew_record(self, session: Session) -> None:
        """Put a new record in the place of the old one, for the session's generation and with what was carried over.

        If there is no memory for it now, it is made when it is asked for.
        """
        # The old one first: then it works even when there is no descriptor left to be had.
        self._close_record()
        if self.spare_generation != session.generation:
            self._close_spare()
        with suppress(OSError):
            self._record = self._next_record(session)

    def close(self) -> tuple[int, ...]:
        """Give the ledger and the record back; the chunks' descriptors are the caller's to close now."""
        self.ledger.close()
        self._close_record()
        self._close_spare()
        chunks = tuple(fd for fds in self.chunks.values() for fd in fds)
        self.chunks = {}
        return chunks

    def _next_record(self, session: Session) -> int:
        if self._spare is None or self._spare[0] != session.generation:
            return new_record(session)
        fd = self._spare[1]
        fill_record(fd, session)
        self._spare = None
        return fd

    def _close_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            os.close(spare[1])

    def _close_record(self) -> None:
        fd, self._record = self._record, None
        if fd is not None:
            os.close(fd)

    def _read(self, at: int, length: int) -> bytes:
        assert self._record is not None
        return os.pread(self._record, length, at)


def new_record(session: Session) -> int:
    """A record for the session's generation, owned by the caller; OSError."""
    fd = memfd.create("mpsguard-record", record.size(session.capacity), fixed=True)
    try:
        fill_record(fd, session)
    except BaseException:
        os.close(fd)
        raise
    return fd


def fill_record(fd: int, session: Session) -> None:
    """Write what has to stand in the record of the session's generation before anybody hears of it; OSError."""
    carried = session.carried
    first = None
    if carried is not None and carried.state is not None:
        first = State(carried.sequence, carried.generation, carried.state)
    for at, piece in record.blank(session.capacity, session.generation, first):
        if os.pwrite(fd, piece, at) != len(piece):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def copies(fds: Sequence[int]) -> tuple[int, ...]:
    """Duplicates, close-on-exec, owned by the caller; OSError (EMFILE) and none of them if there is no room."""
    made: list[int] = []
    try:
        made.extend(os.dup(fd) for fd in fds)
    except BaseException:
        for fd in made:
            os.close(fd)
        raise
    return tuple(made)
