"""What a keeper has kept, sorted: which parcels are whole sessions, and which nobody needs any more."""

import os
import socket
from collections.abc import Container, Mapping

from msgspec.structs import replace

from mpsguard.linux import fd_bundle
from mpsguard.linux.fd_closer import close_all
from mpsguard.vault import state_buffer
from mpsguard.vault.fd_storage.storage import ParcelName, record_name, region_name, session_name
from mpsguard.vault.manifest import LedgerError, Manifest
from mpsguard.vault.region import Carried, Session
from mpsguard.vault.session_fds import SessionFds, fill_record
from mpsguard.vault.transitions import fence, without_region


class Restored:
    """The outcome. Whoever takes it owns the descriptors of its sessions."""

    def __init__(self) -> None:
        self.sessions: list[tuple[Session, SessionFds]] = []
        self.unused: list[str] = []
        """Names of parcels to be forgotten: left over from what was under way when the guard ended."""
        self.unreadable: list[str] = []
        """Names of parcels to be left alone: a later version may know what they are."""
        self.lost: list[str] = []
        """Regions written down whose chunks nobody has kept, by session and name."""
        self.last_id = 0


def restore(parcels: Mapping[str, socket.socket], kept: Container[str] | None = None) -> Restored:
    """Take stock of ``parcels``, which stay the caller's and stay as they are.

    ``kept``: those of them that the keeper of the time to come has; None: all.
    """
    done = Restored()
    contents: dict[str, tuple[int, ...]] = {}
    try:
        for name, parcel in parcels.items():
            try:
                number = ParcelName(name)
                label, fds = fd_bundle.unpack(parcel)
            except (ValueError, OSError):
                done.unreadable.append(name)
                continue
            if label != name.encode() or name in contents:
                close_all(fds)
                done.unreadable.append(name)
                continue
            contents[name] = fds
            done.last_id = max(done.last_id, number.session or 0, number.region or 0, (number.record or (0,))[0])
        for name in sorted(contents):
            if ParcelName(name).session is not None:
                _restore_session(name, contents, kept, done)
        done.unused += contents
    finally:
        for fds in contents.values():
            close_all(fds)
    return done


def _restore_session(
    name: str, contents: dict[str, tuple[int, ...]], kept: Container[str] | None, done: Restored
) -> None:
    fds = contents.pop(name)
    close_all(fds[1:])
    try:
        if not fds:
            raise LedgerError("empty")
        ledger, session = Manifest.open(fds[0])
    except LedgerError:
        done.unreadable.append(name)
        return
    if session is None or session_name(session.id) != name:
        ledger.close()
        done.unused.append(name)
        return
    chunks: dict[int, tuple[int, ...]] = {}
    for region in list(session.regions.values()):
        held = contents.pop(region_name(region.id), ())
        if len(held) == len(region.layout.sizes):
            chunks[region.id] = held
        else:
            close_all(held)
            session = without_region(session, region.name)
            done.lost.append(f"{session.key}: {region.name}")
        done.last_id = max(done.last_id, region.id)
    done.last_id = max(done.last_id, session.id)
    done.sessions.append(_with_record(session, ledger, chunks, _Records(contents, kept)))


class _Records:
    """The records that there are, of which each is taken once."""

    def __init__(self, contents: dict[str, tuple[int, ...]], kept: Container[str] | None) -> None:
        self._contents = contents
        self._kept = kept

    def take(self, session: Session) -> int | None:
        """The one of the session's generation."""
        return self._take(record_name(session.id, session.generation))

    def take_spare(self, session: Session, generation: int) -> tuple[int, int] | None:
        """One that was made beforehand, if the keeper has it: otherwise it is as good as none."""
        name = record_name(session.id, generation)
        fd = self._take(name) if self._kept is None or name in self._kept else None
        return None if fd is None else (generation, fd)

    def _take(self, name: str) -> int | None:
        fds = self._contents.pop(name, ())
        if len(fds) == 1:
            return fds[0]
        close_all(fds)
        return None


def _with_record(
    session: Session, ledger: Manifest, chunks: dict[int, tuple[int, ...]], records: _Records
) -> tuple[Session, SessionFds]:
    fd = records.take(session)
    if fd is not None and session.carried is not None and not _published(fd, session):
        # Made beforehand, perhaps, and not filled; or filled, and nobody was told of it.
        try:
            fill_record(fd, session)
        except OSError:
            os.close(fd)
            fd = None
    if fd is not None:
        spare = records.take_spare(session, session.generation + 1)
        return replace(session, carried=None), SessionFds(ledger, fd, chunks, spare)
    if session.writer is not None:
        # Nobody was told of this generation's record before it was kept, so its writer cannot have published there.
        session = fence(session, session.carried or Carried(0, session.generation, None))
    elif session.carried is None:
        session = replace(session, carried=Carried(0, session.generation, None))
    return session, SessionFds(ledger, None, chunks, records.take_spare(session, session.generation))


def _published(fd: int, session: Session) -> bool:
    """Whether the writer of this generation has published in the record already.

    It may have been told of it by a guard that could not write that down afterwards.
    """
    newest = state_buffer.latest(lambda at, length: os.pread(fd, length, at), session.capacity)
    return newest is not None and newest.generation == session.generation
