"""The page of a session: what the guard stores, clients read; they cannot write, and half a request is none."""

import errno
import mmap
import os
import random

import pytest

from mpsguard.vault.wire.session_page import SIZE, CheckpointRequest, OwnPage, SessionPage, requested


def test_clients_see_what_the_guard_stores() -> None:
    own = OwnPage.create(3)
    fd = own.copy()
    page = SessionPage(fd)
    assert (page.generation[0], page.newest[0], page.request()) == (3, 0, None)
    own.generation = 4
    requests = [CheckpointRequest("one", handover=False), CheckpointRequest("another/image", handover=True)]
    seen = set()
    for number, request in enumerate(requests, 1):
        assert own.ask(request) == number
        assert page.request() == request
        seen.add(page.newest[0])
    assert (page.generation[0], len(seen)) == (4, 2)
    # Half of a newer one.
    content = os.pread(fd, SIZE, 0)
    assert requested(content[:36] + b"x" + content[37:]) is None
    assert requested(content[:24] + b"\0" + content[25:]) is None
    page.close()
    with pytest.raises(ValueError, match="released"):
        page.generation[0]
    os.close(fd)
    own.close()


def test_the_page_goes_on_in_the_next_guard() -> None:
    own = OwnPage.create(7)
    own.ask(CheckpointRequest("one", handover=False))
    stored = os.dup(own.fd)
    own.close()
    following = OwnPage(stored)
    assert following.generation == 7
    assert following.ask(CheckpointRequest("one", handover=False)) == 2
    following.close()
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(stored)


def test_a_client_cannot_write_to_it() -> None:
    own = OwnPage.create(1)
    fd = own.copy()
    for attempt in (
        lambda: os.pwrite(fd, b"x", 0),
        lambda: os.ftruncate(fd, 0),
        lambda: mmap.mmap(fd, SIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
        lambda: os.posix_fallocate(fd, 0, 1),
    ):
        with pytest.raises(OSError):  # noqa: PT011 - EBADF, EINVAL or EACCES, by call
            attempt()
    os.close(fd)
    own.close()


@pytest.mark.parametrize("size", [0, 4095, SIZE])
def test_another_file_is_no_page(size: int) -> None:
    fd = os.memfd_create("other")
    os.ftruncate(fd, size)
    with pytest.raises(OSError, match="page of a session"):
        OwnPage(fd)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(fd)


def test_any_content_is_read_without_harm() -> None:
    chance = random.Random(3)
    for _ in range(2000):
        content = bytearray(chance.randbytes(SIZE))
        content[28:32] = chance.randrange(300).to_bytes(4, "little")
        requested(bytes(content))
