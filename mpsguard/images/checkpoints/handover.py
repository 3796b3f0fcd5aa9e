"""The writer's side of a migration: it stands still from the last cut until the receiver takes over, or time is up."""

import os
import time
from collections.abc import Callable
from typing import Final

from mpsguard.images.checkpoints.checkpoint import Checkpoint, CheckpointState
from mpsguard.images.checkpoints.request_page import RequestPage
from mpsguard.vault.wire import checkpoint_requests
from mpsguard.vault.wire.checkpoint_requests import HELD
from mpsguard.vault.wire.errors import StaleGenerationError

HOLD: Final = 5.0
"""Seconds that the program stands still for the receiver to have all of it; then it goes on. As long for the receiver
to go on, once the lease is given back."""
_LOOK: Final = 0.0002


class HandoverLostError(StaleGenerationError):
    """The lease was given back to the receiver, which has not said that it goes on."""


def hold(
    checkpoint: Checkpoint, page: RequestPage, sequence: int, pump: Callable[[float], None], leave: Callable[[], None]
) -> None:
    """Return when the receiver goes on, or this program is to go on.

    Nothing of the session changes meanwhile: if the receiver ends before it has released the old one, that is whole.

    Args:
        checkpoint: its cut was just taken.
        page: by which the receiver says that it has all of it.
        sequence: of the publication that the cut has.
        pump: handles what the copier says, for that many seconds at most.
        leave: gives the lease back, so that the receiver is promoted.

    Raises:
        HandoverLostError: the receiver has not gone on, and this program may not; the next one that joins does.
    """
    due = time.monotonic() + HOLD
    pump(HOLD)
    if checkpoint.state is not CheckpointState.COMMITTED:
        return
    page.tell(checkpoint, HELD)
    if not _until(lambda: page.offered == sequence, due):
        page.tell(checkpoint)
        return
    fd = page.descriptor()
    try:
        leave()
        if not _until(lambda: checkpoint_requests.has_moved(fd, sequence), time.monotonic() + HOLD):
            raise HandoverLostError("the session was handed over, and the receiver has not gone on with it")
    finally:
        os.close(fd)


def _until(is_true: Callable[[], bool], due: float) -> bool:
    while not is_true():
        if time.monotonic() > due:
            return False
        time.sleep(_LOOK)
    return True
