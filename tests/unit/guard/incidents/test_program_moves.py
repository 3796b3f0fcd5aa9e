"""Which programs can be asked to move."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mpsguard.guard.incidents.program_moves import MoveError, refusal
from mpsguard.guard.model import Client
from mpsguard.linux.identity import Credentials, ProcessKey
from mpsguard.preload.second_claim import ClaimPhase, SecondClaim
from mpsguard.preload.second_move import MoveAnswer
from tests.harness.waiting import until
from tests.unit.guard.broker.test_second_drivers import ALICE
from tests.unit.guard.incidents.moving import Moving, run

CLIENT = Client(ProcessKey(7, 1), 1, 1, "it", "", None, None, "d", "d-0", 0.0, second_driver="cold")
CLAIM = SecondClaim(ClaimPhase.WAITING, "cold", "")


def test_one_that_waits_can_move() -> None:
    assert refusal(CLIENT, CLAIM, moving=False, times=0) == ""


@pytest.mark.parametrize("phase", [ClaimPhase.WENT_OVER, ClaimPhase.MOVED])
def test_one_that_has_gone_over_can_move_again(phase: ClaimPhase) -> None:
    client = msgspec.structs.replace(CLIENT, moved_at=1.0, went_over_at=2.0)
    assert refusal(client, SecondClaim(phase, "cold", "", times=2), moving=False, times=2) == ""


def test_what_would_refuse_a_takeover_now_is_left_to_the_program() -> None:
    """Work in flight is nothing that is in the way: it is waited for."""
    assert refusal(CLIENT, SecondClaim(ClaimPhase.WAITING, "cold", "work_in_flight"), moving=False, times=0) == ""


@pytest.mark.parametrize(
    ("changes", "claim", "moving", "why"),
    [
        ({"second_driver": None}, CLAIM, False, "MPSGUARD_SECOND_DRIVER"),
        ({}, CLAIM, True, "being moved"),
        ({}, None, False, "nothing"),
        ({}, SecondClaim(ClaimPhase.REFUSED, "cold", "managed_memory"), False, "managed_memory"),
    ],
)
def test_others_are_told_why_not(changes: dict[str, Any], claim: SecondClaim | None, moving: bool, why: str) -> None:
    assert why in refusal(msgspec.structs.replace(CLIENT, **changes), claim, moving=moving, times=0)


def test_another_process_is_no_client() -> None:
    assert refusal(None, None, moving=False, times=0)


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


def test_the_word_by_which_a_program_can_be_asked_is_waited_for(tmp_path: Path) -> None:
    async def body(moving: Moving) -> None:
        process = await moving.client()
        moving.say(process, word=0)
        await until(lambda: moving.word(process) == 0)
        first = moving.begin(process)
        await asyncio.wait([first], timeout=0.0)
        moving.say(process, word=7)
        await until(lambda: first.done() or moving.asked())
        assert [word for word, *_ in moving.asked()] == [7]
        await moving.broken_off(first)

    run(tmp_path, body)


async def settled(moving: Moving, process: ProcessKey) -> None:
    await until(lambda: moving.watch.drivers.move_of(process) is None)


async def connected(moving: Moving, process: ProcessKey) -> None:
    """Pass a program's second driver on."""
    drivers = moving.watch.drivers
    await drivers.admit(process, Credentials(process.pid, ALICE, ALICE))
    lane = drivers.lane_of(process)
    assert lane is not None
    drivers.connected(process, lane.spec.name)


@pytest.mark.parametrize("by", ["operator", "guard", "time"])
def test_a_request_that_ends_before_the_program_saw_it_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    if by == "time":
        monkeypatch.setattr("mpsguard.guard.incidents.program_moves._WITHIN", 0.1)
        monkeypatch.setattr("mpsguard.guard.incidents.program_moves._TAKEN_BACK_WITHIN", 0.1)

    async def body(moving: Moving) -> None:
        process = await moving.client()
        before = moving.place.now(process)
        first = moving.begin(process)
        await until(moving.asked)
        if by == "guard":
            # What serves the operator is ended last.
            await moving.restart()
        if by == "time":
            with pytest.raises(MoveError, match="no answer"):
                await first
        else:
            await moving.broken_off(first)
        await settled(moving, process)
        assert moving.place.now(process) == before
        assert [told["reason"] for told in moving.told("client_not_moved")] == ["no answer"]
        again = moving.begin(process)
        await until(moving.asked)
        ((_, number, *_),) = moving.asked()
        await connected(moving, process)
        moving.say(process, number=number, answer=MoveAnswer.MOVED, moved=True)
        assert (await again).share == 20.0

    run(tmp_path, body)


def test_a_program_that_is_at_it_when_the_operator_leaves_says_what_came_of_it(tmp_path: Path) -> None:
    async def body(moving: Moving) -> None:
        process = await moving.client()
        first = moving.begin(process)
        await until(moving.asked)
        ((_, number, *_),) = moving.asked()
        moving.say(process, number=number, answer=MoveAnswer.UNDER_WAY)
        await moving.broken_off(first)
        await until(lambda: not moving.watch.moves._left)
        with pytest.raises(MoveError, match="being moved"):
            await moving.begin(process)
        moving.say(process, number=number, answer=MoveAnswer.BUSY)
        await settled(moving, process)
        assert [told["reason"] for told in moving.told("client_not_moved")] == ["busy"]

    run(tmp_path, body)


def test_one_that_has_moved_when_the_operator_leaves_is_there(tmp_path: Path) -> None:
    """It says so in two places, one after the other: the guard may look in between."""

    async def body(moving: Moving) -> None:
        process = await moving.client()
        first = moving.begin(process)
        await until(moving.asked)
        ((_, number, *_),) = moving.asked()
        await connected(moving, process)
        moving.say(process, number=number, answer=MoveAnswer.UNDER_WAY, moved=True)
        await until(lambda: claims(moving, process) is ClaimPhase.MOVED)
        await moving.broken_off(first)
        await until(lambda: not moving.watch.moves._left)
        moving.say(process, number=number, answer=MoveAnswer.MOVED)
        await settled(moving, process)
        assert moving.place.now(process).moved_at is not None
        assert [told["share"] for told in moving.told("client_moved")] == [20.0]

    run(tmp_path, body)


@pytest.mark.parametrize("before", ["operator", "guard"])
def test_a_lane_that_does_not_let_go_keeps_no_guard_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    monkeypatch.setattr("mpsguard.guard.incidents.program_moves._LET_GO_WITHIN", 3600.0)

    async def body(moving: Moving) -> None:
        process = await moving.client()
        asked = asyncio.Event()

        async def hang() -> dict[int, int]:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

        moving.place.first.clients = hang  # type: ignore[attr-defined]  # a control daemon that does not answer
        first = asyncio.create_task(moving.watch.moves.move(process.pid, "d-1", None, let_go=None))
        await until(moving.asked)
        ((_, number, *_),) = moving.asked()
        await connected(moving, process)
        moving.say(process, number=number, answer=MoveAnswer.MOVED, moved=True)
        await asked.wait()
        if before == "operator":
            await moving.broken_off(first)
            assert moving.told("client_moved") == []
        await moving.watch.close()
        await moving.broken_off(first)
        assert [told["lane"] for told in moving.told("client_moved")] == ["d-1"]
        assert moving.place.now(process).lane == "d-1"

    run(tmp_path, body)


def claims(moving: Moving, process: ProcessKey) -> ClaimPhase | None:
    claim = moving.watch.claim(process)
    return claim.phase if claim is not None else None


def test_a_program_that_says_that_it_moved_and_did_not_is_not_being_moved(tmp_path: Path) -> None:
    async def body(moving: Moving) -> None:
        process = await moving.client()
        first = moving.begin(process)
        await until(moving.asked)
        ((_, number, *_),) = moving.asked()
        moving.say(process, number=number, answer=MoveAnswer.MOVED, moved=True)
        with pytest.raises(MoveError, match="without a second driver"):
            await first
        assert moving.watch.drivers.move_of(process) is None
        with pytest.raises(MoveError, match="says that it has moved"):
            await moving.begin(process)

    run(tmp_path, body)


def test_a_user_whose_programs_do_not_answer_holds_up_those_that_drain_a_lane_for_a_while_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_WITHIN", "_TAKEN_BACK_WITHIN"):
        monkeypatch.setattr(f"mpsguard.guard.incidents.program_moves.{name}", 0.05)
    monkeypatch.setattr("mpsguard.guard.incidents.program_moves._LINE_WITHIN", 0.08)

    async def body(moving: Moving) -> None:
        silent = [(await moving.client()).pid for _ in range(5)]
        moved, left = await moving.watch.moves.drain(silent, "d-1")
        assert moved == ()
        assert [each.pid for each in left] == silent
        assert ["not asked" in each.why for each in left] == [False, True, True, True, True]

    run(tmp_path, body)
