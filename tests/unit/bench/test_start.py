"""What the suite `start` makes of its programs' numbers, and of a time that is over."""

import time
from pathlib import Path

import pytest

from tests.bench.core.bench import Bench
from tests.bench.simulated import SimulatedPrograms
from tests.bench.start.ours import spread
from tests.bench.start.place import same, spare
from tests.bench.start.plan import MOBILENET
from tests.bench.start.starting import measure
from tests.late import require


def test_an_answer_may_be_rounded_otherwise_and_not_be_another_ones() -> None:
    assert same([1.0, -2.0], [1.001, -2.001])
    assert not same([1.0, -2.0], [1.1, -2.0])
    assert not same([1.0], [1.0, 1.0])
    assert not same([float("nan")], [1.0])


def test_percentiles_are_told_with_the_number_of_starts() -> None:
    assert spread([float(number) for number in range(1, 21)]) == "p50 10, p99 20 ms of 20"


def test_a_mixtures_answer_needs_the_experts_that_are_chosen_and_no_others() -> None:
    """What `mixture` measures on demand: a part of the image is enough for the first answer."""
    require("torch")
    from tests.bench.start.models import Skeleton  # noqa: PLC0415 - PyTorch may not be there

    skeleton = Skeleton("small-mixture", "cpu")
    tensors = skeleton.random(3)
    skeleton.bind(tensors)
    asked: set[str] = set()
    experts = {name: each for name, each in skeleton.model.named_modules() if name.split(".")[-2:-1] == ["experts"]}
    for name, expert in experts.items():
        expert.register_forward_pre_hook(lambda *_, name=name: asked.add(name))
    answer = skeleton.answer()
    assert 0 < len(asked) < len(experts)
    for name in experts.keys() - asked:
        for tensor in (value for key, value in tensors.items() if key.startswith(f"{name}.")):
            tensor.fill_(float("nan"))
    assert skeleton.answer() == answer
    for key, tensor in tensors.items():
        if key.startswith(f"{min(asked)}."):
            tensor.fill_(float("nan"))
    assert skeleton.answer() != answer


@pytest.mark.slow(seconds=15, reason="makes a model and starts it by workers with PyTorch")
def test_what_no_time_is_left_for_is_said_and_what_was_measured_stays(tmp_path: Path) -> None:
    require("torch")
    said: list[str] = []
    bench = Bench(tmp_path, SimulatedPrograms(), True, said.append)
    rows = measure(bench, MOBILENET)
    first = next(rows)
    bench.ends_at = time.monotonic()
    assert spare(bench) == 0.0
    others = list(rows)
    assert first.row.name.startswith("mobilenet, ours, already on the GPU")
    at_once = next(each for each in others if each.row.name.startswith("mobilenet, ours, 2 starts at once"))
    assert [len(each.samples) for each in (first, at_once)] == [1, 2]
    missed = [each.row.name.removesuffix(": not measured") for each in others if each.row.bar == "measured"]
    assert missed == [
        "mobilenet, ours, from pinned memory",
        "mobilenet, on demand",
        "mobilenet, a plain warm process",
        "mobilenet, cold processes",
    ]
    assert all("left" in each.note for each in others if each.row.bar == "measured")
    assert any("until 5 workers wait" in each for each in said)
