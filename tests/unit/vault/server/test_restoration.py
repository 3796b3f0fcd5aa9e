"""Sessions restored from the bundles that a storage has kept."""

import errno
import mmap
import os
import resource
import sys
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from mpsguard.guard.daemon.vault_service import take_bundles
from mpsguard.linux.descriptors import fd_bundle, memfd
from mpsguard.linux.identity import ProcessKey
from mpsguard.vault.server.fd_storage.storage import buffer_name, region_name, session_name
from mpsguard.vault.server.manifest import Manifest
from mpsguard.vault.server.restoration import Restored, restore
from mpsguard.vault.server.session_fds import SessionFds, fill_buffer
from mpsguard.vault.wire import state_buffer
from mpsguard.vault.wire.region import Carried, Lease, LeaseRole, SessionKey, SessionRecord
from mpsguard.vault.wire.session_page import RELEASED, OwnPage
from mpsguard.vault.wire.state_buffer import Publisher, State

SESSION = SessionRecord(
    SessionKey(0, "s"),
    1,
    64,
    generation=2,
    writer=Lease(7, ProcessKey(1, 0), 0, LeaseRole.WRITER),
    carried=Carried(3, 1, b"carried over"),
)
"""Its state buffer is stored, and the manifest does not say so yet."""


def found_by_the_next_guard(buffer_fd: int, session: SessionRecord = SESSION, told: int | None = 2) -> Restored:
    """As a guard finds it that was started just now; the record stays the caller's.

    ``told``: the generation in the session's page; None: there is no page, as an earlier version left it.
    """
    manifest = Manifest.create()
    manifest.commit(session)
    page = None if told is None else OwnPage.create(told)
    named = {
        session_name(1): (manifest.fd,) if page is None else (manifest.fd, page.fd),
        buffer_name(1, session.generation): (buffer_fd,),
    }
    bundles = {name: fd_bundle.pack(name.encode(), fds) for name, fds in named.items()}
    found = restore({name: bundle.kept for name, bundle in bundles.items()})
    manifest.close()
    if page is not None:
        page.close()
    for bundle in bundles.values():
        bundle.kept.close()
        bundle.receipt.close()
    return found


def restored(buffer_fd: int) -> tuple[SessionRecord, SessionFds]:
    found = found_by_the_next_guard(buffer_fd)
    ((session, session_fds),) = found.sessions
    assert (found.unused, found.unreadable, found.lost, found.renewed) == ([], [], [], [])
    return session, session_fds


def current() -> memoryview:
    return memoryview(SESSION.generation.to_bytes(8, sys.byteorder)).cast("Q")


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
        publisher = Publisher(view, SESSION.capacity, SESSION.generation, current())
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


@pytest.fixture
def record() -> Iterator[int]:
    """A record with one publication of the writer's."""
    fd = memfd.create("record", state_buffer.size(SESSION.capacity), fixed=True)
    fill_buffer(fd, SESSION)
    with mmap.mmap(fd, 0) as memory, memoryview(memory) as view:
        publisher = Publisher(view, SESSION.capacity, SESSION.generation, current())
        publisher.publish(b"published")
        publisher.close()
    yield fd
    os.close(fd)


def test_a_session_of_an_earlier_version_gets_a_page_and_is_stored_again(record: int) -> None:
    found = found_by_the_next_guard(record, replace(SESSION, carried=None), told=None)
    ((session, session_fds),) = found.sessions
    assert found.renewed == [session_name(1)]
    assert (session.writer, session.generation, session_fds.page.generation) == (SESSION.writer, 2, 2)
    assert session_fds.newest(session) == Carried(4, 2, b"published")
    assert session_fds.kept == (session_fds.manifest.fd, session_fds.page.fd)
    session_fds.close()


def test_a_writer_that_was_told_of_its_end_stays_fenced_off(record: int) -> None:
    """The guard before ended between the page and the manifest."""
    found = found_by_the_next_guard(record, replace(SESSION, carried=None), told=3)
    ((session, session_fds),) = found.sessions
    assert (session.writer, session.generation, session_fds.page.generation) == (None, 3, 3)
    assert session.carried == Carried(4, 2, b"published")
    assert [lease.role for lease in session.readers] == [LeaseRole.FENCED]
    session_fds.close()


def test_a_session_that_was_told_of_its_release_is_released(record: int) -> None:
    found = found_by_the_next_guard(record, told=RELEASED)
    assert found.sessions == []
    assert sorted(found.unused) == sorted([session_name(1), buffer_name(1, 2)])


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_of_two_bundles_with_one_name_the_fuller_one_counts(order: tuple[int, int]) -> None:
    """As the service manager has them of a session that was stored again with a page."""
    content = os.memfd_create("content")
    given = {}
    for count in order:
        bundle = fd_bundle.pack(session_name(1).encode(), (content,) * count)
        given[bundle.kept.detach()] = session_name(1)
        bundle.receipt.close()
    bundles = take_bundles(given)
    assert given == {}
    _, fds = fd_bundle.unpack(bundles[session_name(1)])
    assert len(fds) == 2
    for fd in (content, *fds):
        os.close(fd)
    bundles[session_name(1)].close()


def test_a_session_is_not_lost_for_want_of_a_descriptor() -> None:
    """Its regions would be taken for what no session has any more, and be forgotten."""
    manifest, page = Manifest.create(), OwnPage.create(SESSION.generation)
    manifest.commit(SESSION)
    name = session_name(1)
    kept, receipt = fd_bundle.pack(name.encode(), (manifest.fd, page.fd))
    with kept, receipt:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(OSError, match="no room") as raised:
                restore({name: kept})
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert raised.value.errno == errno.EMFILE
        found = restore({name: kept})
    ((session, _),) = found.sessions
    assert session.key == SESSION.key
    found.close()
    manifest.close()
    page.close()


def test_regions_are_kept_for_a_version_that_can_read_their_session() -> None:
    manifest = memfd.create("another", 4096, fixed=True)
    named = {session_name(1): (manifest,), region_name(2): (manifest,)}
    bundles = {name: fd_bundle.pack(name.encode(), fds) for name, fds in named.items()}
    found = restore({name: bundle.kept for name, bundle in bundles.items()})
    for bundle in bundles.values():
        bundle.kept.close()
        bundle.receipt.close()
    os.close(manifest)
    assert (sorted(found.unreadable), found.unused) == (sorted(named), [])
