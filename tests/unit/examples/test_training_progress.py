"""Which copy of the training's state is whole, whichever process dies and whichever still writes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.training import progress as forward
from examples.training.progress import COPIES, Progress, ProgressError


@given(st.lists(st.sampled_from(["step", "death"]), max_size=50))
def test_no_process_writes_what_is_whole_nor_what_the_one_before_may_still_write(events: list[str]) -> None:
    now = Progress(0, 0, 1)
    for event in events:
        if event == "death":
            before = now.target
            now = forward.after_failover(forward.decode(forward.encode(now)))
            assert now.target != before
        else:
            written = now.target
            now = forward.advanced(now, 0.5)
            assert now.copy == written
        assert now.target != now.copy
        assert {now.target, now.copy} <= set(range(COPIES))
    assert now.step == events.count("step")


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"step":1,"copy":3,"target":0}', b'{"step":-1,"copy":0,"target":1}', b'{"step":1,"copy":0}']
)
def test_anything_else_is_no_progress(data: bytes) -> None:
    with pytest.raises(ProgressError):
        forward.decode(data)
