"""The grounds of a verdict: each has a row, the docs show the same, and nothing that can be forged is proof."""

from pathlib import Path

import pytest

from mpsguard.incident import Confidence, Ground
from mpsguard.triage.grounds import GROUNDS, table

POLICY = Path(__file__).parents[3] / "docs" / "guides" / "policy.md"


def test_every_ground_has_its_row_and_the_docs_show_it() -> None:
    assert set(GROUNDS) == set(Ground)
    assert table() in POLICY.read_text()


@pytest.mark.parametrize("ground", Ground)
def test_no_ground_is_unknown_and_what_may_be_acted_on_is_no_elimination(ground: Ground) -> None:
    worth = GROUNDS[ground]
    assert worth.confidence is not Confidence.UNKNOWN
    assert not (worth.may_act and "elimination" in worth.what)
    assert not (worth.confidence is Confidence.PROVEN and "any" in worth.forger)
