"""Guards that the tests of a file share."""

from collections.abc import Iterator

import pytest

from tests.integration.own_paths.shared import SharedGuards


@pytest.fixture(scope="module")
def guards() -> Iterator[SharedGuards]:
    """Closed after the file's last test."""
    shared = SharedGuards()
    yield shared
    shared.close()
