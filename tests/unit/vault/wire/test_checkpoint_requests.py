"""What is told of checkpoints in a region: what one side writes, the other reads; anything else is nothing."""

import os
import random

import pytest

from mpsguard.vault.wire.checkpoint_requests import (
    SIZE,
    CheckpointOutcome,
    LastOutcomes,
    check_layout,
    decoded_outcomes,
    tell,
)
from mpsguard.vault.wire.errors import LayoutMismatchError
from mpsguard.vault.wire.region import RegionLayout


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
        for at in (512, 2048):
            content[at : at + 4] = chance.randrange(4000).to_bytes(4, "little")
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
