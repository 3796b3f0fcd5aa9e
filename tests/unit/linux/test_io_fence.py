"""A fence between processes: one inside keeps it open, one outside does not get in once it is shut."""

import mmap
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from mpsguard.linux.descriptors.io_fence import FencePass, FenceShutError, IoFence
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import wait_for

_WORD = struct.Struct("=Q")


@pytest.fixture
def fence() -> Iterator[IoFence]:
    made = IoFence()
    yield made
    made.close()


@pytest.fixture
def fence_pass(fence: IoFence) -> Iterator[FencePass]:
    made = FencePass(fence.new_pass())
    yield made
    made.close()


def child(work: Callable[[], None]) -> int:
    pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def test_it_is_shut_when_no_process_is_inside(fence: IoFence, fence_pass: FencePass) -> None:
    with fence_pass:
        assert not fence.shut()
        with fence_pass:
            assert not fence.shut()
        assert not fence.shut()
    assert fence.shut()
    with pytest.raises(FenceShutError), fence_pass:
        raise AssertionError("it got in")


def test_a_failed_attempt_to_shut_it_changes_nothing(fence: IoFence, fence_pass: FencePass) -> None:
    with fence_pass:
        assert not fence.shut()
    with fence_pass:
        pass


def test_it_stays_shut_when_its_owner_is_gone(fence: IoFence, fence_pass: FencePass) -> None:
    assert fence.shut()
    assert fence.shut()
    fence.close()
    for _ in range(2):
        with pytest.raises(FenceShutError), fence_pass:
            raise AssertionError("it got in")


def test_it_stays_open_when_its_owner_is_gone(fence: IoFence, fence_pass: FencePass) -> None:
    fence.close()
    with fence_pass:
        pass


def test_threads_are_inside_together(fence: IoFence, fence_pass: FencePass) -> None:
    first_is_in, first_may_go, second_is_in, second_may_go = (threading.Event() for _ in range(4))

    def stay(is_in: threading.Event, may_go: threading.Event) -> None:
        with fence_pass:
            is_in.set()
            may_go.wait()

    first = threading.Thread(target=stay, args=(first_is_in, first_may_go))
    second = threading.Thread(target=stay, args=(second_is_in, second_may_go))
    first.start()
    first_is_in.wait()
    second.start()
    second_is_in.wait()
    first_may_go.set()
    first.join()
    assert not fence.shut()
    second_may_go.set()
    second.join()
    assert fence.shut()


def test_a_process_that_dies_inside_does_not_keep_it_open(fence: IoFence) -> None:
    told, tell = os.pipe()

    def work() -> None:
        with FencePass(fence.new_pass()):
            os.write(tell, b"!")
            signal.pause()

    pid = child(work)
    assert os.read(told, 1)
    assert not fence.shut()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert fence.shut()
    os.close(told)
    os.close(tell)


@pytest.mark.parametrize("attempt", range(20))
def test_nothing_happens_inside_once_it_is_shut(fence: IoFence, attempt: int) -> None:
    """The other process goes in and out as fast as it can, and writes two halves of a number each time."""
    with mmap.mmap(-1, 2 * _WORD.size) as shared:

        def halves() -> tuple[int, int]:
            return _WORD.unpack_from(shared, 0)[0], _WORD.unpack_from(shared, _WORD.size)[0]

        def work() -> None:
            fence_pass, number = FencePass(fence.new_pass()), 0
            while True:
                number += 1
                try:
                    with fence_pass:
                        _WORD.pack_into(shared, 0, number)
                        _WORD.pack_into(shared, _WORD.size, number)
                except FenceShutError:
                    return

        pid = child(work)
        wait_for("its work", lambda: halves()[1] > 50 * attempt)
        wait_for("a moment in which it is outside", fence.shut)
        one, other = halves()
        assert one == other
        os.waitpid(pid, 0)
        assert halves() == (one, other)


def test_every_descriptor_is_given_back() -> None:
    before = open_descriptors()
    for _ in range(3):
        made = IoFence()
        through = FencePass(made.new_pass())
        with through:
            pass
        made.shut()
        for each in (made, through, made, through):
            each.close()
    assert opened_since(before) == []
