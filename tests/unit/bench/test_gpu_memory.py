"""GPU memory in use, read when no client's end is under way."""

from itertools import chain, count, repeat

import pytest

from tests.bench.core.errors import SuiteError
from tests.bench.core.gpu_memory import settled


class Readings:
    """GPU memory of which one reading follows another."""

    def __init__(self, *values: int) -> None:
        self._values = chain(values, repeat(values[-1]))

    def used(self) -> int:
        return next(self._values)


class Restless:
    """GPU memory of which no two readings are the same."""

    def __init__(self) -> None:
        self._values = count()

    def used(self) -> int:
        return next(self._values)


def test_memory_that_is_freed_is_not_counted() -> None:
    assert settled(Readings(900, 900, 500, 100), quiet=0.3) == 100


def test_memory_that_never_settles_is_an_error() -> None:
    with pytest.raises(SuiteError, match="still changes"):
        settled(Restless(), quiet=0.3, within=0.2)
