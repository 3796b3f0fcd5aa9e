"""Names of sessions, regions and images."""

from __future__ import annotations

import pytest

from mpsguard.vault.wire.errors import BadRequestError
from mpsguard.vault.wire.region import check_name


@pytest.mark.parametrize("name", ["a", "training/1", "migration/llm:7b.v2-x_y", "9" * 128])
def test_what_a_name_may_be(name: str) -> None:
    check_name("session", name)


@pytest.mark.parametrize("name", ["", "../a", "training@1", "a b", "-a", "9" * 129, "a\n"])
def test_what_it_may_not_be(name: str) -> None:
    with pytest.raises(BadRequestError, match="no name of a session: "):
        check_name("session", name)
    with pytest.raises(BadRequestError, match="no name of an image: "):
        check_name("image", name)
