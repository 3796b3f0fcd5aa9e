"""How many of the processors the copier's storing threads take."""

import pytest

from mpsguard.copier.run import storers_for


@pytest.mark.parametrize(("processors", "storers"), [(1, 2), (2, 2), (4, 3), (16, 12), (32, 24), (256, 24)])
def test_some_processors_are_left_to_the_program(processors: int, storers: int) -> None:
    assert storers_for(processors) == storers
