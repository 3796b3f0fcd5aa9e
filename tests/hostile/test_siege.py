"""Every attack at once, from three users, while fifty clients of a fourth come and go."""

import os
from pathlib import Path

import pytest

from tests.harness.waiting import wait_for
from tests.hostile.attacks import ATTACKS
from tests.hostile.siege import siege

pytestmark = [
    pytest.mark.slow(seconds=60, reason="every attack at once"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no FUSE here"),
]

SERVED = 100
"""Of the good clients, while all attack: each some two times. `scripts/hostile-bench` goes on for minutes."""


def test_good_clients_are_served_and_nothing_is_left() -> None:
    with siege() as running:
        before = running.state()
        with running.under(list(ATTACKS)):
            running.is_served(SERVED)
            assert running.refusals() == []
        running.is_served(SERVED)

        def settled() -> bool:
            now = running.state()
            # Each good client may be in its handshake.
            return now.descriptors <= before.descriptors + 20 and now.processes <= before.processes

        wait_for("what the attackers had cost", settled, 90)
        assert running.is_alive()
        assert running.refusals() == []
