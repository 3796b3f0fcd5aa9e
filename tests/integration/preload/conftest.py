"""One bench a session for each way of building."""

from __future__ import annotations

import pytest

from tests.integration.preload import bench
from tests.integration.preload.bench import Bench


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return bench.make(tmp_path_factory.mktemp("preload"))


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return bench.make(tmp_path_factory.mktemp("preload-asan"), "address,undefined")


@pytest.fixture(scope="session")
def thread_sanitized(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return bench.make(tmp_path_factory.mktemp("preload-tsan"), "thread")
