"""A client that holds its own memory-map lock: a read of its command line or environment in /proc waits for it."""

import os
from pathlib import Path

import pytest

from tests.harness.waiting import wait_for
from tests.hostile.attacker import attack
from tests.hostile.attacks import LOCKED_MEMORY_MAP
from tests.hostile.stalled_files import StalledFiles
from tests.integration.guarded import Guarded
from tests.integration.peer import Peer

pytestmark = [
    pytest.mark.slow(seconds=45, reason="attacks a real guard"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no FUSE here"),
]


def test_a_client_with_a_locked_memory_map_delays_no_other() -> None:
    with Guarded(domain="multiuser = true") as guarded:
        mount = guarded.root / "stalled"
        mount.mkdir()
        guarded.start()
        guarded.client().expect("started")
        with StalledFiles(mount) as stalled:
            hostile = attack(guarded, LOCKED_MEMORY_MAP, str(stalled.file))
            assert stalled.asked.wait(30)
            # It came as far as to be a client: from then on the guard may have to read of it.
            wait_for("the hostile client", lambda: hostile.pid in {client["pid"] for client in served(guarded)})
            assert guarded.stop() == 0


def served(guarded: Guarded) -> list[dict[str, int]]:
    """Another client is served meanwhile; the clients that the guard knows."""
    with Peer(guarded.public) as good:
        assert good.connect_as_client()
    return [{"pid": client.get("process", client)["pid"]} for client in guarded.clients()]
