"""Sorts stored bundles after a restart of the guard: which belong to whole sessions, and which are obsolete."""

import errno
import os
import socket
from collections.abc import Container, Mapping
from contextlib import ExitStack
from typing import Final

from msgspec.structs import replace

from mpsguard.linux.descriptors import fd_bundle
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.vault.server.fd_storage.storage import BundleName, buffer_name, region_name, session_name
from mpsguard.vault.server.manifest import Manifest, ManifestError
from mpsguard.vault.server.session_fds import SessionFds, fill_buffer, last_state
from mpsguard.vault.server.transitions import fence, without_region
from mpsguard.vault.wire.region import Carried, SessionRecord
from mpsguard.vault.wire.session_page import RELEASED, OwnPage

_SHORTAGE: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_SESSION: Final = session_name(0)[:-1]


class Restored:
    """The result of `restore`. The caller owns the descriptors of its sessions."""

    def __init__(self) -> None:
        self.sessions: list[tuple[SessionRecord, SessionFds]] = []
        self.unused: list[str] = []
        """Names of obsolete bundles, left over from operations that were under way when the guard ended; to be
        forgotten."""
        self.renewed: list[str] = []
        """Names of bundles with new content, to be stored before any client is served: an earlier version stored no
        page."""
        self.unreadable: list[str] = []
        """Names of bundles to be left alone: a later version may be able to read them."""
        self.lost: list[str] = []
        """Regions in a manifest without stored chunks, by session and name."""
        self.last_id = 0

    def close(self) -> None:
        """Close the descriptors of the sessions, which nothing has adopted."""
        for _, session_fds in self.sessions:
            close_all(session_fds.close())


def restore(bundles: Mapping[str, socket.socket], kept: Container[str] | None = None) -> Restored:
    """Restore sessions from ``bundles``, which stay unchanged and owned by the caller.

    Args:
        bundles: the stored bundles by name.
        kept: names of the bundles that the storage used from now on has; None: all.

    Raises:
        OSError: a session's page cannot be mapped or made, or there is no descriptor or memory for a bundle, of which
            the content would be taken for obsolete; nothing was changed.
    """
    done = Restored()
    contents: dict[str, tuple[int, ...]] = {}
    try:
        for name, bundle in bundles.items():
            try:
                number = BundleName(name)
                label, fds = fd_bundle.unpack(bundle)
            except (ValueError, OSError) as error:
                if isinstance(error, OSError) and error.errno in _SHORTAGE:
                    raise
                done.unreadable.append(name)
                continue
            if label != name.encode() or name in contents:
                close_all(fds)
                done.unreadable.append(name)
                continue
            contents[name] = fds
            done.last_id = max(done.last_id, number.session or 0, number.region or 0, (number.buffer or (0,))[0])
        for name in sorted(contents):
            if BundleName(name).session is not None:
                _restore_session(name, contents, kept, done)
        # No bundle says which session it belongs to: it may be one of those that a later version reads.
        obsolete = done.unreadable if any(name.startswith(_SESSION) for name in done.unreadable) else done.unused
        obsolete += contents
    except BaseException:
        done.close()
        raise
    finally:
        for fds in contents.values():
            close_all(fds)
    return done


def _restore_session(
    name: str, contents: dict[str, tuple[int, ...]], kept: Container[str] | None, done: Restored
) -> None:
    fds = contents.pop(name)
    close_all(fds[2:])
    with ExitStack() as undo:
        undo.callback(close_all, fds[1:2])
        try:
            if not fds:
                raise ManifestError("empty")
            manifest, session = Manifest.open(fds[0])
        except ManifestError:
            done.unreadable.append(name)
            return
        undo.callback(manifest.close)
        if session is None or session_name(session.id) != name:
            done.unused.append(name)
            return
        undo.pop_all()
    try:
        page = OwnPage(fds[1]) if len(fds) > 1 else OwnPage.create(session.generation)
    except BaseException:
        manifest.close()
        raise
    if page.generation == RELEASED:
        # The manifest could not be told.
        manifest.close()
        page.close()
        done.unused.append(name)
        return
    if len(fds) == 1:
        done.renewed.append(name)
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
    buffers = _Buffers(contents, kept)
    if page.generation > session.generation:
        session = _fenced(session, buffers)
    session, buffer, spare = _with_buffer(session, buffers)
    page.generation = session.generation
    done.sessions.append((session, SessionFds(manifest, page, buffer, chunks, spare)))


class _Buffers:
    """The state buffers that were found; each can be taken once."""

    def __init__(self, contents: dict[str, tuple[int, ...]], kept: Container[str] | None) -> None:
        self._contents = contents
        self._kept = kept

    def take(self, session: SessionRecord) -> int | None:
        """Take the state buffer of the session's generation, or None."""
        return self._take(buffer_name(session.id, session.generation))

    def take_spare(self, session: SessionRecord, generation: int) -> tuple[int, int] | None:
        """Take the spare for ``generation``, or None if the current storage does not have it."""
        name = buffer_name(session.id, generation)
        fd = self._take(name) if self._kept is None or name in self._kept else None
        return None if fd is None else (generation, fd)

    def _take(self, name: str) -> int | None:
        fds = self._contents.pop(name, ())
        if len(fds) == 1:
            return fds[0]
        close_all(fds)
        return None


def _fenced(session: SessionRecord, buffers: _Buffers) -> SessionRecord:
    """Return the session after the end of a generation of which its clients were told, and the manifest was not."""
    carried = session.carried
    fd = buffers.take(session)
    if fd is not None:
        newest = last_state(fd, session)
        os.close(fd)
        if newest is not None:
            carried = Carried(newest.sequence, newest.generation, newest.state)
    return fence(session, carried or Carried(0, session.generation, None))


def _with_buffer(session: SessionRecord, buffers: _Buffers) -> tuple[SessionRecord, int | None, tuple[int, int] | None]:
    """Return the session with its state buffer, if there is one, and a spare."""
    fd = buffers.take(session)
    if fd is not None and session.carried is not None and not _published(fd, session):
        # A spare that is not filled yet, or that is filled and was not announced to a writer: a writer gets a state
        # buffer only after the manifest says so (`SessionFds.state_copies`). So no other process can hold its lock.
        try:
            fill_buffer(fd, session)
        except OSError:
            os.close(fd)
            fd = None
    if fd is not None:
        return replace(session, carried=None), fd, buffers.take_spare(session, session.generation + 1)
    if session.writer is not None:
        # A state buffer is stored before it is announced to its writer, so this writer cannot have published in it.
        session = fence(session, session.carried or Carried(0, session.generation, None))
    elif session.carried is None:
        session = replace(session, carried=Carried(0, session.generation, None))
    return session, None, buffers.take_spare(session, session.generation)


def _published(fd: int, session: SessionRecord) -> bool:
    """Return whether the writer of this generation has published in this buffer.

    An earlier version could announce it before the manifest said so.
    """
    newest = last_state(fd, session)
    return newest is not None and newest.generation == session.generation
