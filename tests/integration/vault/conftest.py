"""What most of these tests start with; some have a vault of their own under the same name."""

from collections.abc import Iterator

import pytest

from tests.integration.vault.running import ThreadedVault, descriptors


@pytest.fixture
def vault() -> Iterator[ThreadedVault]:
    """A vault on a thread, which leaves no descriptor behind."""
    before = descriptors()
    with ThreadedVault() as running:
        yield running
        running.storage.empty()
    assert descriptors() == before
