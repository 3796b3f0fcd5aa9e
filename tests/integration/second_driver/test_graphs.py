"""Graphs of stream captures: the second driver is given the same ones; what of them cannot be made again is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.integration.second_driver.bench import SPARE, Bench

pytestmark = pytest.mark.slow(seconds=20, reason="compiles the preload")

MODES: Final = ["cold", "hot"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "name", ["graph_used_after", "captured_after", "graphs_of_threads", "memory_refused_in_a_capture"]
)
def test_a_program_with_graphs_that_is_idle_goes_on(built: Bench, tmp_path: Path, mode: str, name: str) -> None:
    ended = built.case(tmp_path, mode, name)
    assert (ended.said, ended.reason, ended.repeated) == ("survived", None, 0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "name", ["graph_in_flight", "graph_of_two_streams", "captured_for_long", "graph_with_memory_of_its_own"]
)
def test_a_graph_in_flight_is_launched_again(built: Bench, tmp_path: Path, mode: str, name: str) -> None:
    ended = built.case(tmp_path, mode, name, spare=SPARE)
    assert (ended.said, ended.reason) == ("survived", None)
    assert ended.repeated > 0


@pytest.mark.parametrize(
    ("name", "reason", "detail"),
    [
        ("graph_with_host_memory", "graphs", "cuMemcpyHtoDAsync_v2"),
        ("ordered_memory_in_a_capture", "graphs", "cuMemAllocAsync"),
        ("graph_launched_by_kernels", "graphs", "flags of an instance"),
        ("graph_of_unloaded", "graphs", "cuModuleUnload"),
        ("capture_at_fault", "graphs", "a capture under way"),
        ("instance_ended_in_flight", "unlogged", "cuGraphExecDestroy"),
    ],
)
def test_what_cannot_be_made_again_gets_the_error(
    built: Bench, tmp_path: Path, name: str, reason: str, detail: str
) -> None:
    ended = built.case(tmp_path, "cold", name, spare=SPARE)
    assert (ended.said, ended.reason) == ("lost 719", reason)
    assert ended.report is not None
    assert ended.report["detail"] == detail


@pytest.mark.parametrize("name", ["graph_used_after", "graph_in_flight", "graph_of_two_streams", "captured_for_long"])
def test_switched_off_the_capture_is_the_driver_s(built: Bench, tmp_path: Path, name: str) -> None:
    assert built.case(tmp_path, "off", name, spare=SPARE).said == "lost 719"
