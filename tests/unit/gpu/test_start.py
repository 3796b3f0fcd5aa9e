"""What the suite `start` makes of its programs' numbers."""

from tests.gpu.start.place import same
from tests.gpu.start.starting import _spread


def test_an_answer_may_be_rounded_otherwise_and_not_be_another_ones() -> None:
    assert same([1.0, -2.0], [1.001, -2.001])
    assert not same([1.0, -2.0], [1.1, -2.0])
    assert not same([1.0], [1.0, 1.0])
    assert not same([float("nan")], [1.0])


def test_percentiles_are_told_with_the_number_of_starts() -> None:
    assert _spread([float(number) for number in range(1, 21)]) == "p50 10, p99 20 ms of 20"
