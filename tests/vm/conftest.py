"""The kernel and the modules under test; a test that lacks its parts is skipped and says which."""

from __future__ import annotations

import pytest

from tests.vm import sources


@pytest.fixture(scope="session")
def kernel() -> sources.Kernel:
    reason = sources.missing("linux")
    if reason is not None:
        pytest.skip(reason)
    return sources.debian_kernel()


@pytest.fixture(params=sources.BRANCHES)
def branch(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    reason = sources.missing(f"nvidia-{name}")
    if reason is not None:
        pytest.skip(reason)
    return name
