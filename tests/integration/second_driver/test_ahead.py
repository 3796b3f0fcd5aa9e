"""A hot second driver maps the program's memory ahead of a fault; what is not certain by then is mapped anew."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.integration.second_driver.bench import ONCE, SPARE, Bench

pytestmark = pytest.mark.slow(seconds=30, reason="compiles the preload, and runs a program for each case")

MAPPING: Final = ("cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess")
"""What the second driver does to map memory; in the first one it is exported."""
REGISTERING: Final = "cuMemHostRegister_v2"
"""The same for host memory."""


def fail(work: Path, lane: str, call: str, number: str) -> Path:
    """Let a call of a driver fail once, from that one on; the file is gone when it has."""
    place = work / lane / f"fail-{call}"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(number)
    return place


@pytest.mark.parametrize(("name", "spare"), [("mapped_ahead", None), ("mapped_ahead_in_flight", SPARE)])
def test_a_takeover_maps_nothing_that_is_there(built: Bench, tmp_path: Path, name: str, spare: int | None) -> None:
    """Just before the fault the program sees to it that each mapping would fail."""
    variables = {"MPSGUARD_SECOND_REPETITION": "beside", **(ONCE if spare else {})}
    ended = built.case(tmp_path, "hot", name, spare=spare, **variables)
    assert (ended.said, ended.reason) == ("survived", None)
    assert (ended.repeated > 0) == (spare is not None)
    assert all((tmp_path / "second" / f"fail-{call}").exists() for call in (*MAPPING, REGISTERING))


@pytest.mark.parametrize("name", ["mapped_ahead", "mapped_ahead_in_flight"])
def test_a_cold_program_maps_nothing_ahead(built: Bench, tmp_path: Path, name: str) -> None:
    ended = built.case(tmp_path, "cold", name, spare=SPARE, **ONCE)
    assert (ended.said, ended.reason) == ("lost 719", "second_failed")


LOADING: Final = ("load_function", "cuGraphInstantiateWithFlags")
"""What the driver does at the first launch of a kernel, if not before; and what makes a graph ready."""


def test_a_takeover_loads_nothing_that_is_there(built: Bench, tmp_path: Path) -> None:
    """Of the driver's calls that need its memory, each would fail; with the real one they wait for the dead lane."""
    ended = built.case(tmp_path, "hot", "loaded_ahead")
    assert (ended.said, ended.reason) == ("survived", None)
    assert all((tmp_path / "second" / f"fail-{call}").exists() for call in LOADING)


def test_a_takeover_has_room_for_its_launches(built: Bench, tmp_path: Path) -> None:
    """The second driver cannot have more memory for them by then."""
    ended = built.case(tmp_path, "hot", "many_in_flight", spare=SPARE, MPSGUARD_SECOND_REPETITION="beside", **ONCE)
    assert (ended.said, ended.reason) == ("survived", None)
    assert ended.repeated >= 100
    assert (tmp_path / "second" / "fail-have_room").exists()


def test_kernels_of_a_program_that_is_never_still_are_loaded_ahead(built: Bench, tmp_path: Path) -> None:
    ended = built.case(
        tmp_path, "hot", "loaded_ahead_while_busy", spare=SPARE, MPSGUARD_SECOND_REPETITION="beside", **ONCE
    )
    assert (ended.said, ended.reason) == ("survived", None)
    assert ended.repeated > 0
    assert all((tmp_path / "second" / f"fail-{call}").exists() for call in LOADING)


@pytest.mark.parametrize("mode", ["cold", "hot"])
def test_a_graph_whose_memory_is_gone_can_be_destroyed(built: Bench, tmp_path: Path, mode: str) -> None:
    ended = built.case(tmp_path, mode, "graph_of_freed_memory")
    assert (ended.said, ended.reason) == ("survived", None)


@pytest.mark.parametrize("call", LOADING)
def test_what_cannot_be_loaded_ahead_is_loaded_when_it_is_used(built: Bench, tmp_path: Path, call: str) -> None:
    place = fail(tmp_path, "second", call, "1")
    ended = built.case(tmp_path, "hot", "graph_used_after")
    assert (ended.said, ended.reason) == ("survived", None)
    assert not place.exists()


@pytest.mark.parametrize(
    "name",
    [
        "freed_is_free",
        "address_used_again",
        "host_memory_used_again",
        "host_memory_is_left",
        "access_given_later",
        "access_taken",
        "placed_while_another_reserves",
    ],
)
@pytest.mark.parametrize("spare", [None, SPARE])
def test_what_is_mapped_is_what_the_program_has(built: Bench, tmp_path: Path, name: str, spare: int | None) -> None:
    if name == "placed_while_another_reserves":
        (tmp_path / "second").mkdir()
        (tmp_path / "second" / "pause-reserve").touch()
    ended = built.case(tmp_path, "hot", name, spare=spare)
    assert ended.said == "survived", ended


def test_a_program_that_is_refused_has_nothing_mapped_ahead(built: Bench, tmp_path: Path) -> None:
    ended = built.case(tmp_path, "hot", "freed_is_free_when_refused")
    assert (ended.said, ended.reason) == ("survived", "shared_with_others")


def test_what_is_freed_is_free_when_the_program_asks(built: Bench, tmp_path: Path) -> None:
    assert built.case(tmp_path, "hot", "freed_is_free_when_asked").said == "survived"


@pytest.mark.parametrize("variables", [{}, {"MPSGUARD_SECOND_REPETITION": "beside"}], ids=["alone", "beside"])
def test_an_address_used_again_has_the_last_memory(built: Bench, tmp_path: Path, variables: dict[str, str]) -> None:
    ended = built.case(tmp_path, "hot", "address_used_again_in_flight", spare=SPARE, **ONCE, **variables)
    assert (ended.said, ended.reason) == ("survived", None)
    assert ended.repeated > 0


def test_what_is_freed_is_free_for_an_allocation_that_fails(built: Bench, tmp_path: Path) -> None:
    """It has 40 of 63 MiB, frees them and wants as much again, at once."""
    ended = built.case(tmp_path, "hot", "freed_and_wanted", STAND_IN_MIB="63")
    assert (ended.said, ended.reason) == ("survived", None)


FAILING: Final = [
    ("second", "cuMemAddressReserve", "1"),
    ("first", "cuMemRetainAllocationHandle", "1"),
    ("first", "cuMemExportToShareableHandle", "1"),
    *(("second", call, number) for call in MAPPING for number in "12"),
    ("second", "cuMemUnmap", "1"),
]
"""The lane, a call there, and the number of the one that fails."""


@pytest.mark.parametrize("spare", [None, SPARE])
def test_host_memory_that_cannot_be_had_ahead_is_had_at_the_takeover(
    built: Bench, tmp_path: Path, spare: int | None
) -> None:
    place = fail(tmp_path, "second", REGISTERING, "1")
    ended = built.case(tmp_path, "hot", "host_memory_used_again", spare=spare)
    assert (ended.said, ended.reason) == ("survived", None)
    assert not place.exists()


@pytest.mark.parametrize("spare", [None, SPARE])
@pytest.mark.parametrize("failing", FAILING, ids="-".join)
def test_what_fails_ahead_is_done_at_the_takeover(
    built: Bench, tmp_path: Path, failing: tuple[str, str, str], spare: int | None
) -> None:
    place = fail(tmp_path, *failing)
    ended = built.case(tmp_path, "hot", "address_used_again", spare=spare)
    assert (ended.said, ended.reason) == ("survived", None)
    assert not place.exists()
