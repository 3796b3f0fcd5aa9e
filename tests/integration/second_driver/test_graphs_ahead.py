"""Instances of graphs that a hot second driver makes ahead: none is used that is not what the program has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.second_driver.bench import BESIDE, ONCE, SPARE, Bench

pytestmark = pytest.mark.slow(seconds=30, reason="compiles the preload, and runs a program for each case")


@pytest.mark.parametrize("spare", [None, SPARE])
@pytest.mark.parametrize(
    "name",
    [
        "instance_made_anew",
        "instance_made_anew_at_fault",
        "instance_ended_meanwhile",
        "instance_ended_ahead",
        "instance_ended_at_fault",
        "instance_updated_after",
        "memory_mapped_anew",
        "attribute_of_captured",
        "limit_of_instance",
        "found_otherwise",
        "instance_of_variable",
    ],
)
def test_an_instance_is_what_the_program_has(built: Bench, tmp_path: Path, name: str, spare: int | None) -> None:
    """Whatever the program does while the second driver makes it, or later; without waiting for that."""
    ended = built.case(tmp_path, "hot", name, spare=spare, **BESIDE)
    assert (ended.said, ended.reason) == ("survived", None)


def test_an_instance_of_memory_that_was_mapped_anew_is_made_anew(built: Bench, tmp_path: Path) -> None:
    for name in ("memory_mapped_anew_at_fault", "memory_mapped_between"):
        ended = built.case(tmp_path / name, "hot", name, spare=SPARE, **ONCE, **BESIDE)
        assert (ended.said, ended.reason) == ("survived", None)
        assert ended.repeated > 0


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("instance_updated", "cuGraphExecUpdate_v2"),
        ("instance_updated_meanwhile", "cuGraphExecUpdate_v2"),
        ("unloaded_meanwhile", "cuModuleUnload"),
    ],
)
def test_what_cannot_be_made_again_gets_the_error(built: Bench, tmp_path: Path, name: str, detail: str) -> None:
    ended = built.case(tmp_path, "hot", name, spare=SPARE, **BESIDE)
    assert (ended.said, ended.reason) == ("lost 719", "graphs")
    assert ended.report is not None
    assert ended.report["detail"] == detail


def test_a_program_that_is_refused_has_none_made(built: Bench, tmp_path: Path) -> None:
    assert built.case(tmp_path, "hot", "instance_when_refused").said == "survived"
