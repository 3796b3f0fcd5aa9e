"""What a writer and its copier say to each other: the plan of a cut, small and large."""

import os

import msgspec
import pytest

from mpsguard.images.checkpoints.messages import (
    MAX_PACKET,
    Begin,
    CutPlan,
    begin,
    decode_for_copier,
    encode,
    plan_of,
)


def plan(size: int, serial: int = 3) -> CutPlan:
    return CutPlan(serial, "one", 1, 1, 9, os.urandom(size), (), 4, bytes(4))


@pytest.mark.parametrize(("size", "descriptors"), [(0, 0), (8000, 0), (8192, 1), (1 << 20, 1)])
def test_a_plan_that_is_too_large_for_a_packet_is_in_a_memfd(size: int, descriptors: int) -> None:
    wanted = plan(size)
    message, fds = begin(wanted)
    try:
        assert len(fds) == descriptors
        packet = encode(message)
        assert len(packet) <= MAX_PACKET
        heard = decode_for_copier(packet)
        assert isinstance(heard, Begin)
        assert plan_of(heard, fds) == wanted
    finally:
        for fd in fds:
            os.close(fd)


def test_a_plan_of_another_cut_is_refused() -> None:
    message, _ = begin(plan(10))
    with pytest.raises(msgspec.DecodeError, match="plan 3 for checkpoint 4"):
        plan_of(Begin(4, message.plan), ())
