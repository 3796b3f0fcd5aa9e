"""The page by which a checkpoint is asked for: what one side writes, the other reads; anything else is no request."""

import os
import random

import pytest

from mpsguard.vault.checkpoint_requests import (
    HEADER,
    SIZE,
    CheckpointOutcome,
    LastOutcomes,
    ask,
    check_layout,
    decoded_outcomes,
    requested,
    tell,
)
from mpsguard.vault.errors import LayoutMismatchError
from mpsguard.vault.region import RegionLayout


def test_a_request_and_its_outcome() -> None:
    fd = os.memfd_create("page")
    os.ftruncate(fd, SIZE)
    os.pwrite(fd, HEADER, 0)
    assert requested(os.pread(fd, SIZE, 0)) is None
    assert [ask(fd, name) for name in ("one", "another/image")] == [1, 2]
    content = os.pread(fd, SIZE, 0)
    assert requested(content) == "another/image"
    # Half of a newer one.
    assert requested(content[:68] + b"x" + content[69:]) is None
    outcome = CheckpointOutcome("one", "committed", 1e9, 5, 0.5)
    tell(fd, outcome)
    assert decoded_outcomes(os.pread(fd, SIZE, 0)) == LastOutcomes(outcome, None)
    os.close(fd)


def test_the_outcome_of_a_request_outlasts_the_programs_own_checkpoints() -> None:
    fd = os.memfd_create("page")
    os.ftruncate(fd, SIZE)
    asked = CheckpointOutcome("asked", "committed", 1e9, 5, 0.5)
    tell(fd, asked, requested=True)
    assert decoded_outcomes(os.pread(fd, SIZE, 0)) == LastOutcomes(asked, asked)
    # As long as one can be.
    own = CheckpointOutcome("\U0001f600" * 128, "\U0001f600" * 64, 2e9, 1 << 56, 0.1)
    tell(fd, own)
    assert decoded_outcomes(os.pread(fd, SIZE, 0)) == LastOutcomes(own, asked)
    os.close(fd)


def test_any_content_is_read_without_harm() -> None:
    chance = random.Random(3)
    for _ in range(2000):
        content = bytearray(chance.randbytes(SIZE))
        content[64:68] = chance.randrange(300).to_bytes(4, "little")
        for at in (512, 2048):
            content[at : at + 4] = chance.randrange(4000).to_bytes(4, "little")
        requested(bytes(content))
        decoded_outcomes(bytes(content))
    assert decoded_outcomes(b"") == LastOutcomes(None, None)


@pytest.mark.parametrize(
    "outcome",
    [
        CheckpointOutcome("one", "committed", float("nan")),
        CheckpointOutcome("one", "committed", 1e300),
        CheckpointOutcome("x" * 129, "committed", 1.0),
        CheckpointOutcome("one", "committed", 1.0, -1),
    ],
)
def test_an_outcome_that_cannot_be_one_is_none(outcome: CheckpointOutcome) -> None:
    fd = os.memfd_create("page")
    os.ftruncate(fd, SIZE)
    tell(fd, outcome, requested=True)
    assert decoded_outcomes(os.pread(fd, SIZE, 0)) == LastOutcomes(None, None)
    os.close(fd)


@pytest.mark.parametrize(
    "layout", [RegionLayout((8192,)), RegionLayout((4096,), gpu="GPU-1"), RegionLayout((2048, 2048))]
)
def test_another_region_is_no_page(layout: RegionLayout) -> None:
    with pytest.raises(LayoutMismatchError):
        check_layout(layout)
