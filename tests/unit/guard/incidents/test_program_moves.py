"""Which programs can be asked to move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from mpsguard.guard.incidents.program_moves import MoveError, refusal
from mpsguard.guard.model import Client
from mpsguard.linux.identity import ProcessKey
from mpsguard.preload.second_claim import ClaimPhase, SecondClaim
from tests.harness.waiting import until
from tests.unit.guard.incidents.moving import Moving, run

CLIENT = Client(ProcessKey(7, 1), 1, 1, "it", "", None, None, "d", "d-0", 0.0, second_driver="cold")
CLAIM = SecondClaim(ClaimPhase.WAITING, "cold", "")


def test_one_that_waits_can_move() -> None:
    assert refusal(CLIENT, CLAIM, moving=False) == ""


def test_what_would_refuse_a_takeover_now_is_left_to_the_program() -> None:
    """Work in flight is nothing that is in the way: it is waited for."""
    assert refusal(CLIENT, SecondClaim(ClaimPhase.WAITING, "cold", "work_in_flight"), moving=False) == ""


@pytest.mark.parametrize(
    ("changes", "claim", "moving", "why"),
    [
        ({"second_driver": None}, CLAIM, False, "MPSGUARD_SECOND_DRIVER"),
        ({"moved_at": 1.0}, CLAIM, False, "moved_already"),
        ({"went_over_at": 1.0}, CLAIM, False, "moved_already"),
        ({}, CLAIM, True, "being moved"),
        ({}, None, False, "nothing"),
        ({}, SecondClaim(ClaimPhase.REFUSED, "cold", "managed_memory"), False, "managed_memory"),
    ],
)
def test_others_are_told_why_not(changes: dict[str, Any], claim: SecondClaim | None, moving: bool, why: str) -> None:
    assert why in refusal(msgspec.structs.replace(CLIENT, **changes), claim, moving=moving)


def test_another_process_is_no_client() -> None:
    assert refusal(None, None, moving=False)


def test_a_word_by_which_one_process_was_asked_is_no_other_ones(tmp_path: Path) -> None:
    """All users read it on the page: the first process would heed it, and be moved in place of the second."""

    async def body(moving: Moving) -> None:
        asked, other = await moving.client(), await moving.client()
        first = moving.begin(asked)
        await until(moving.asked)
        ((word, *_),) = moving.asked()
        await moving.broken_off(first)
        moving.say(other, word=word)
        for _ in range(2):
            await until(lambda: moving.word(other) == word)
            with pytest.raises(MoveError, match=f"by which process {asked.pid} was asked"):
                await moving.begin(other)
            assert moving.asked() == []
            await moving.restart()

    run(tmp_path, body)
