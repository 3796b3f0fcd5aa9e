"""Shared memory in pages of 2 MiB, as the kernel shows it."""

import ctypes
import errno
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard.linux.descriptors import memfd
from mpsguard.linux.huge_pages import HUGE_PAGE, AlignedMapping
from tests.harness.smaps import smaps

PAGES = 4
SIZE = PAGES * HUGE_PAGE
THP = Path("/sys/kernel/mm/transparent_hugepage")
LINUX = tuple(int(part) for part in os.uname().release.split(".")[:2])

collapses = pytest.mark.skipif(
    not THP.is_dir() or LINUX < (6, 1), reason="this kernel makes no pages of 2 MiB of memory that is there"
)


def free_huge_pages() -> int:
    """How many pages of 2 MiB are free as such; memory that is in pieces can have none, however much of it is free."""
    orders = [line.partition("zone")[2].split()[1:] for line in Path("/proc/buddyinfo").read_text().splitlines()]
    return sum(int(count) << order - 9 for zone in orders for order, count in enumerate(zone) if order >= 9)


@pytest.fixture
def fd() -> Iterator[int]:
    made = memfd.create("huge-pages-test", SIZE, fixed=True)
    yield made
    os.close(made)


def kib(key: str) -> list[int]:
    """Of each of our mappings of the file."""
    return [int(words[0]) for words in smaps("huge-pages-test", key)]


def mappings_of(size: int) -> int:
    """How many mappings have this size."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ends = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    return sum(end - start == size for start, end in ends)


@collapses
def test_memory_is_made_of_large_pages_and_keeps_its_content(fd: int) -> None:
    # All that run beside this test may take some meanwhile.
    if free_huge_pages() < 16 * PAGES:
        pytest.skip("this machine's memory is in pieces smaller than 2 MiB")
    mapping = AlignedMapping(fd, SIZE, writable=True)
    assert mapping.address % HUGE_PAGE == 0
    view = mapping.view()
    content = os.urandom(2 * HUGE_PAGE)
    view[HUGE_PAGE : HUGE_PAGE + len(content)] = content
    assert mapping.make_huge(fd, threading.Event(), within=60) == SIZE
    assert kib("ShmemPmdMapped") == [SIZE >> 10]
    other = AlignedMapping(fd, SIZE, writable=False)
    assert other.view()[HUGE_PAGE : HUGE_PAGE + len(content)] == content
    assert not any(other.view()[:HUGE_PAGE])
    assert not any(other.view()[-HUGE_PAGE:])
    # By an access to a page of 2 MiB all of it is there.
    assert kib("ShmemPmdMapped") == [SIZE >> 10, SIZE >> 10]
    view.release()
    for each in (mapping, other):
        each.close()
        each.close()
    assert kib("Size") == []


def test_it_can_be_ended_early_and_has_a_time(fd: int) -> None:
    mapping = AlignedMapping(fd, SIZE, writable=True)
    stop = threading.Event()
    assert mapping.make_huge(fd, stop, within=-1) == 0
    stop.set()
    assert mapping.make_huge(fd, stop, within=60) == 0
    mapping.close()


def test_without_a_file_to_write_to_nothing_is_made(fd: int) -> None:
    mapping = AlignedMapping(fd, SIZE, writable=True)
    mine = memfd.read_only(fd)
    assert mapping.make_huge(mine, threading.Event(), within=60) == 0
    os.close(mine)
    mapping.close()


def test_a_view_keeps_the_mapping(fd: int) -> None:
    view = AlignedMapping(fd, SIZE, writable=True).view()
    gc.collect()
    view[0] = 7
    assert kib("Size") == [SIZE >> 10]
    view.release()
    del view
    gc.collect()
    assert kib("Size") == []


def test_what_is_kept_is_unmapped_by_close_alone(fd: int) -> None:
    mapping = AlignedMapping(fd, SIZE, writable=False)
    mapping.keep()
    address = mapping.address
    del mapping
    gc.collect()
    assert kib("Size") == [SIZE >> 10]
    ctypes.CDLL(None).munmap(ctypes.c_void_p(address), ctypes.c_size_t(SIZE))
    other = AlignedMapping(fd, SIZE, writable=False)
    other.keep()
    other.close()
    other.close()
    assert kib("Size") == []


def test_what_cannot_be_mapped_leaves_nothing(fd: int) -> None:
    mine = memfd.read_only(fd)
    before = mappings_of(SIZE + HUGE_PAGE)
    with pytest.raises(OSError, match="denied") as caught:
        AlignedMapping(mine, SIZE, writable=True)
    assert caught.value.errno == errno.EACCES
    # Other threads may map memory meanwhile, but not of just this size.
    assert mappings_of(SIZE + HUGE_PAGE) == before
    os.close(mine)
