"""The preload and a stand-in for the driver, compiled once for each file."""

import pytest

from tests.integration.second_driver import bench
from tests.integration.second_driver.bench import Bench


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return bench.make(tmp_path_factory.mktemp("second-driver"))
