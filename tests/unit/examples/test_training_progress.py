"""Which copy of the training's state is whole, whoever dies and whoever still writes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.training import progress as forward
from examples.training.progress import COPIES, Progress, ProgressError


@given(st.lists(st.sampled_from(["step", "death"]), max_size=50))
def test_what_is_whole_is_never_written_by_anybody(events: list[str]) -> None:
    now, fenced = Progress(0, 0), None
    for event in events:
        if event == "death":
            # Who is fenced off may still be writing its next copy.
            fenced = forward.target(now)
            now = forward.inherited(forward.decode(forward.encode(now)))
            assert forward.target(now) != now.copy
            if not now.taken_over:
                fenced = None
        else:
            written = forward.target(now)
            assert written != now.copy
            assert fenced is None or written != fenced or not now.taken_over
            now = forward.advanced(now, 0.5)
            assert now.copy == written
            fenced = None
    assert now.step == events.count("step")


def test_who_goes_on_writes_neither_what_is_whole_nor_what_may_be_written() -> None:
    for copy in range(COPIES):
        before = Progress(5, copy)
        assert len({copy, forward.target(before), forward.target(forward.inherited(before))}) == COPIES


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"step":1,"copy":3}', b'{"step":-1,"copy":0}', b'{"step":1,"copy":0,"x":1}']
)
def test_anything_else_is_no_progress(data: bytes) -> None:
    with pytest.raises(ProgressError):
        forward.decode(data)
