"""What most of these tests start with; some have a vault of their own under the same name."""

from collections.abc import Iterator

import pytest

from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.integration.vault.running import ThreadedVault


@pytest.fixture
def vault() -> Iterator[ThreadedVault]:
    """A vault on a thread, which leaves no descriptor behind."""
    before = open_descriptors()
    with ThreadedVault() as running:
        yield running
        running.storage.empty()
    assert opened_since(before) == []
