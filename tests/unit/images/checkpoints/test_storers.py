"""How many threads of the copier store."""

import pytest

from mpsguard.images.copier.run import STORE_MEANWHILE, storers_for

MANY = 10_000


@pytest.mark.parametrize(("processors", "storers"), [(1, 2), (2, 2), (4, 2), (16, 8), (32, 16), (256, 24)])
def test_some_processors_are_left_to_the_program(processors: int, storers: int) -> None:
    assert storers_for(processors, MANY) == storers


@pytest.mark.parametrize(("pieces", "storers"), [(1, 1), (3, 3), (81, STORE_MEANWHILE), (320, 10), (MANY, 16)])
def test_few_pieces_take_few_threads(pieces: int, storers: int) -> None:
    """Each start may take a processor from the program, which notices 2 ms."""
    assert storers_for(32, pieces) == storers
