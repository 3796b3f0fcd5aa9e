"""Sessions restored from the bundles that a storage has kept."""

import mmap
import os

import pytest

from mpsguard.linux.descriptors import fd_bundle, memfd
from mpsguard.model import ProcessKey
from mpsguard.vault import state_buffer
from mpsguard.vault.fd_storage.storage import buffer_name, session_name
from mpsguard.vault.manifest import Manifest
from mpsguard.vault.region import Carried, Lease, LeaseRole, SessionKey, SessionRecord
from mpsguard.vault.restoration import restore
from mpsguard.vault.session_fds import SessionFds, fill_buffer
from mpsguard.vault.state_buffer import Publisher, State

SESSION = SessionRecord(
    SessionKey(0, "s"),
    1,
    64,
    generation=2,
    writer=Lease(7, ProcessKey(1, 0), 0, LeaseRole.WRITER),
    carried=Carried(3, 1, b"carried over"),
)
"""Its state buffer is stored, and the manifest does not say so yet."""


def restored(buffer_fd: int) -> tuple[SessionRecord, SessionFds]:
    """As a guard finds it that was started just now; the record stays the caller's."""
    manifest = Manifest.create()
    manifest.commit(SESSION)
    named = {session_name(1): manifest.fd, buffer_name(1, 2): buffer_fd}
    bundles = {name: fd_bundle.pack(name.encode(), (fd,)) for name, fd in named.items()}
    found = restore({name: bundle.kept for name, bundle in bundles.items()})
    manifest.close()
    for bundle in bundles.values():
        bundle.kept.close()
        bundle.receipt.close()
    ((session, session_fds),) = found.sessions
    assert (found.unused, found.unreadable, found.lost) == ([], [], [])
    return session, session_fds


def newest(fd: int) -> State | None:
    return state_buffer.latest(lambda at, length: os.pread(fd, length, at), SESSION.capacity)


@pytest.mark.parametrize("filled", [True, False])
@pytest.mark.parametrize("times", [1, 2])
def test_what_was_carried_over_stands_in_the_record(filled: bool, times: int) -> None:
    fd = memfd.create("record", state_buffer.size(SESSION.capacity), fixed=True)
    if filled:
        fill_buffer(fd, SESSION)
    for _ in range(times):
        session, session_fds = restored(fd)
        assert (session.carried, session.generation, session.writer) == (None, 2, SESSION.writer)
        assert newest(fd) == (3, 1, b"carried over")
        session_fds.close()
    os.close(fd)


@pytest.mark.parametrize("publications", [1, state_buffer.SLOTS, state_buffer.SLOTS + 1])
def test_what_was_published_since_is_not_written_over(publications: int) -> None:
    """The guard before told the writer of its record, could not write that down, and has ended."""
    fd = memfd.create("record", state_buffer.size(SESSION.capacity), fixed=True)
    fill_buffer(fd, SESSION)
    with mmap.mmap(fd, 0) as memory, memoryview(memory) as view:
        publisher = Publisher(view, SESSION.capacity, SESSION.generation)
        for number in range(publications):
            publisher.publish(b"published %d" % number)
        del publisher
        before = bytes(memory)
        session, session_fds = restored(fd)
        assert bytes(memory) == before
        assert session.carried is None
    assert newest(fd) == (3 + publications, 2, b"published %d" % (publications - 1))
    session_fds.close()
    os.close(fd)
