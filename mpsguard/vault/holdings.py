"""The descriptors of one session: its ledger, the record of its forward state, and the chunks of its regions."""

import os
from collections.abc import Sequence
from typing import Self

from mpsguard.linux import memfd
from mpsguard.vault import record
from mpsguard.vault.ledger import Ledger
from mpsguard.vault.record import State
from mpsguard.vault.region import Carried, Session


class Holdings:
    """Owns them all."""

    def __init__(self, ledger: Ledger, record_fd: int, chunks: dict[int, tuple[int, ...]]) -> None:
        self.ledger = ledger
        self.record = record_fd
        self.chunks = chunks
        """By the region's id."""

    @classmethod
    def create(cls, session: Session) -> Self:
        """For a new session; OSError."""
        ledger = Ledger.create()
        try:
            return cls(ledger, new_record(session), {})
        except BaseException:
            ledger.close()
            raise

    def cut(self, session: Session) -> Carried:
        """End the record that is: its writer hears of it, and what it has published until now is what counts."""
        word_at, over = record.OVER
        # In this order: see Publisher.publish.
        os.pwrite(self.record, over, word_at)
        newest = record.latest(self._read, session.capacity)
        if newest is None or newest.generation > session.generation:
            return Carried(0, session.generation, None) if session.carried is None else session.carried
        return Carried(newest.sequence, newest.generation, newest.state)

    def newest(self, session: Session) -> State | None:
        """The forward state at this moment."""
        return record.latest(self._read, session.capacity)

    def renew_record(self, session: Session) -> None:
        """Put a new record in the place of the old one, for the session's generation and with what was carried over."""
        # In this order it works even when there is no descriptor left to be had.
        os.close(self.record)
        self.record = new_record(session)

    def close(self) -> tuple[int, ...]:
        """Give the ledger and the record back; the chunks' descriptors are the caller's to close now."""
        self.ledger.close()
        os.close(self.record)
        chunks = tuple(fd for fds in self.chunks.values() for fd in fds)
        self.chunks = {}
        return chunks

    def _read(self, at: int, length: int) -> bytes:
        return os.pread(self.record, length, at)


def new_record(session: Session) -> int:
    """A record for the session's generation, owned by the caller."""
    fd = memfd.create("mpsguard-record", record.size(session.capacity), fixed=True)
    carried = session.carried
    first = None
    if carried is not None and carried.state is not None:
        first = State(carried.sequence, carried.generation, carried.state)
    for at, piece in record.blank(session.capacity, session.generation, first):
        os.pwrite(fd, piece, at)
    return fd


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
