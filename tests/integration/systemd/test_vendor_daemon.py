"""The vendor's own control daemon, started and adopted under the hardening of the unit (it runs without a GPU)."""

import pytest

from tests.integration.systemd.installed import (
    CONFIGURATION,
    CONFIGURED,
    PIPE_DIRECTORY,
    SERVICE,
    SIMULATED,
    InstalledGuard,
)
from tests.vendor import BRANCHES, find

pytestmark = [pytest.mark.systemd, pytest.mark.root, pytest.mark.vendor]


@pytest.mark.parametrize("branch", BRANCHES)
def test_it_starts_and_is_adopted(guard: InstalledGuard, branch: str) -> None:
    vendor = find(branch)
    if isinstance(vendor, str):
        pytest.skip(vendor)
    # A lane of its own for each branch: a lane is adopted whatever daemon the configuration names by then.
    text = CONFIGURED.replace(str(SIMULATED), str(vendor.control)).replace('"default"', f'"vendor-{branch}"')
    guard.machine.write(CONFIGURATION, text)
    guard.machine.systemctl("restart", SERVICE)
    lane, pid = guard.lane(), guard.pid()
    guard.kill("SIGKILL")
    guard.wait_for_another(pid)
    assert guard.lane() == lane
    ask = ["env", f"CUDA_MPS_PIPE_DIRECTORY={PIPE_DIRECTORY}", str(vendor.control)]
    assert guard.machine.run(*ask, stdin="get_default_active_thread_percentage\n").stdout.strip() == "100.0"
