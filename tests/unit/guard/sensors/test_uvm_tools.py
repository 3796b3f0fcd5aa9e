"""The queue of one address space, against a stand-in for the driver (see uvm_driver)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.linux.nvidia import uvm_events, uvm_tools
from mpsguard.linux.nvidia.uvm_events import V1, V2, Events, decode
from mpsguard.linux.nvidia.uvm_tools import NotAVaSpaceError, Tracker, UvmStatusError
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.unit.guard.sensors.uvm_driver import FATAL_FAULT, GPU_FAULT, Queue, Release, StandInDriver, entry

BOTH = Events.GPU_FAULT | Events.FATAL_FAULT
EVERY_RELEASE = pytest.mark.parametrize("release", list(Release))


@contextmanager
def va_space() -> Iterator[int]:
    fd = os.open("/dev/full", os.O_RDWR | os.O_APPEND)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def attached(release: Release = Release.R580) -> Iterator[tuple[Tracker, Queue]]:
    driver = StandInDriver(release)
    with va_space() as fd:
        tracker = Tracker.attach(driver, fd, BOTH)
    try:
        yield tracker, driver.queues[0]
    finally:
        tracker.close()
        driver.reap()
        assert driver.queues == []


def test_numbers_are_those_of_the_headers() -> None:
    """Request numbers and sizes as read in uvm_ioctl.h and uvm_types.h (535.54 to 595.45).

    UVM_TOOLS_INIT_EVENT_TRACKER_PARAMS is 56 bytes, 64 in 550 and 555, which write all of it back;
    SET_NOTIFICATION_THRESHOLD 8; ENABLE_EVENTS 16. The widest member of UvmEventEntry is the migration's 64 bytes, of
    UvmEventEntry_V2 the migration's and the thrashing's 72.
    """
    assert uvm_tools._INIT.size == 64
    assert uvm_tools._THRESHOLD.size == 8
    assert uvm_tools._ENABLE.size == 16
    assert (V1.request, V1.entry_bytes) == (56, 64)
    assert (V2.request, V2.entry_bytes) == (76, 72)
    assert (uvm_tools.SET_THRESHOLD, uvm_tools.ENABLE_EVENTS) == (57, 58)
    assert int(BOTH) == 0b1001000
    assert len(uvm_events._FAULT_TYPE) == 16
    assert len(uvm_events._ACCESS) == 4
    assert len(uvm_events._REASON) == 6


@EVERY_RELEASE
def test_both_kinds_of_faults_are_read(release: Release) -> None:
    with attached(release) as (tracker, queue):
        assert tracker.layout is (V2 if release is Release.R580 else V1)
        assert (queue.entries, queue.threshold, queue.events) == (64, 1, BOTH)
        queue.put(GPU_FAULT, fault=4, access=3, gpu=9, at=0xFFFF_8000_0000_1234, ns=2**63 + 5)
        queue.put(FATAL_FAULT, fault=8, access=1, gpu=17, at=0x7F00, ns=12)
        one, two = tracker.drain().faults
    assert (one.fatal, one.fault_type, one.access, one.reason) == (False, "atomic not allowed", "atomic", None)
    assert (one.address, one.processor, one.raw_ns) == (0xFFFF_8000_0000_1234, 9, 2**63 + 5)
    assert (two.fatal, two.fault_type, two.access, two.reason) == (
        True,
        "privilege violation",
        "read",
        "invalid address",
    )
    assert (two.address, two.processor, two.raw_ns) == (0x7F00, 17, 12)


def test_what_a_laboratory_program_read_on_an_h200() -> None:
    """The second layout's places, as the probe that ran on the driver (580) unpacked them."""
    fault = decode(entry(True, FATAL_FAULT, fault=1, access=4, gpu=300, at=7, ns=8), V2)
    assert fault is not None
    assert (fault.processor, fault.access, fault.fault_type) == (300, "prefetch", "invalid PDE")


@EVERY_RELEASE
def test_numbers_without_a_name_are_shown(release: Release) -> None:
    with attached(release) as (tracker, queue):
        queue.put(FATAL_FAULT, fault=200, access=0)
        (fault,) = tracker.drain().faults
    assert (fault.fault_type, fault.access) == ("unknown(200)", "unknown(0)")


@EVERY_RELEASE
def test_the_queue_wraps_around(release: Release) -> None:
    with attached(release) as (tracker, queue):
        seen = []
        for number in range(500):
            queue.put(FATAL_FAULT, at=number)
            if number % 41 == 0:
                seen += [fault.address for fault in tracker.drain().faults]
        seen += [fault.address for fault in tracker.drain().faults]
    assert seen == list(range(500))


@EVERY_RELEASE
def test_what_found_no_room_is_counted_once(release: Release) -> None:
    with attached(release) as (tracker, queue):
        assert sum(queue.put(GPU_FAULT, at=number) for number in range(100)) == 63
        queue.put(FATAL_FAULT)
        first, second = tracker.drain(), tracker.drain()
        queue.put(FATAL_FAULT, at=77)
        third = tracker.drain()
    assert ([fault.address for fault in first.faults], first.dropped) == (list(range(63)), 38)
    assert (second.faults, second.dropped) == ([], 0)
    assert ([fault.address for fault in third.faults], third.dropped) == ([77], 0)


@pytest.mark.parametrize("kind", [0, 2, 7, 63, 64, 255])
def test_an_entry_of_another_kind_is_skipped_and_counted(kind: int) -> None:
    with attached() as (tracker, queue):
        queue.put(FATAL_FAULT, at=1)
        queue.put_raw(FATAL_FAULT, bytes([kind]) + os.urandom(71))
        queue.put(FATAL_FAULT, at=2)
        drained = tracker.drain()
    assert ([fault.address for fault in drained.faults], drained.skipped) == ([1, 2], 1)


def test_a_file_that_is_no_address_space_is_told_from_other_refusals() -> None:
    before = open_descriptors()
    driver = StandInDriver()
    plain = os.open("/dev/full", os.O_RDWR)
    with pytest.raises(NotAVaSpaceError, match="0x16"):
        Tracker.attach(driver, plain, BOTH)
    os.close(plain)
    driver.refuse_with = 0x51
    with va_space() as fd, pytest.raises(UvmStatusError, match="0x51 to EVENT_QUEUE") as refused:
        Tracker.attach(driver, fd, BOTH)
    assert not isinstance(refused.value, NotAVaSpaceError)
    driver.reap()
    assert opened_since(before) == []


def test_closing_gives_everything_back() -> None:
    before = open_descriptors()
    with attached() as (tracker, queue):
        assert not tracker.broken()
        queue.fail()
        assert tracker.broken()
        tracker.close()
    assert opened_since(before) == []


@given(
    st.sampled_from(list(Release)),
    st.lists(st.one_of(st.just("drain"), st.integers(1, 90), st.just("garbage")), max_size=25),
)
def test_every_event_comes_once_and_in_order_or_is_counted(release: Release, steps: list[str | int]) -> None:
    number = 0
    accepted: list[int] = []
    seen: list[int] = []
    refused = garbage = dropped = skipped = 0
    with attached(release) as (tracker, queue):
        for step in [*steps, "drain"]:
            if step == "drain":
                drained = tracker.drain()
                seen += [fault.address for fault in drained.faults]
                dropped += drained.dropped
                skipped += drained.skipped
                assert queue.pending() == 0
                assert (seen, dropped, skipped) == (accepted, refused, garbage)
            elif step == "garbage":
                added = queue.put_raw(GPU_FAULT, b"\x05" + bytes(71 if queue.wide else 63))
                garbage += added
                refused += not added
            else:
                assert isinstance(step, int)
                for _ in range(step):
                    number += 1
                    kind = FATAL_FAULT if number % 3 else GPU_FAULT
                    if queue.put(kind, at=number):
                        accepted.append(number)
                    else:
                        refused += 1
