"""The grounds of a verdict: each has a row, the docs show the same, and nothing that can be forged is proof."""

import pytest

from mpsguard.guard.incident import Confidence, Ground
from mpsguard.guard.triage.grounds import GROUNDS, table
from tests.harness.tree import ROOT

PAGE = ROOT / "docs" / "reference" / "grounds.md"


def test_every_ground_has_its_row_and_the_docs_show_it() -> None:
    assert set(GROUNDS) == set(Ground)
    assert table() in PAGE.read_text()


@pytest.mark.parametrize("ground", Ground)
def test_no_ground_is_unknown_and_what_may_be_acted_on_is_no_elimination(ground: Ground) -> None:
    worth = GROUNDS[ground]
    assert worth.confidence is not Confidence.UNKNOWN
    assert not (worth.may_act and "elimination" in worth.what)
    assert not (worth.confidence is Confidence.PROVEN and "any" in worth.forger)
