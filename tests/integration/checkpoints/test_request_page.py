"""The page for requests, where this process runs out of descriptors."""

import itertools
import os
from contextlib import suppress
from pathlib import Path

from mpsguard.client import Session
from mpsguard.images.checkpoints.checkpoint import Checkpoint
from mpsguard.images.checkpoints.checkpoints import Checkpoints
from mpsguard.images.checkpoints.options import CheckpointOptions
from mpsguard.images.checkpoints.request_page import RequestPage
from tests.harness.descriptors_left import descriptors_left
from tests.integration.vault.running import VaultProcess


def test_nothing_is_left_of_a_page_for_which_there_is_no_descriptor(tmp_path: Path) -> None:
    with VaultProcess() as vault, Session("s", socket=vault.socket) as session:
        checkpoint = Checkpoint("a", Checkpoints(session, CheckpointOptions(tmp_path / "store")))
        for left in itertools.count():
            page = RequestPage(session)
            with descriptors_left(left):
                page.open()
            is_open = not page.is_new and page_descriptors() > 0
            # As at a publication: an error here would be the program's.
            page.tell(checkpoint)
            page.close()
            assert page_descriptors() == 0, f"{left} left"
            if is_open:
                break
        assert left > 1


def page_descriptors() -> int:
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found += "mpsguard-checkpoint" in os.readlink(f"/proc/self/fd/{fd}")
    return found
