"""The writer's side of requests for checkpoints: asked in the session's page, answered in a region of the session."""

import mmap
import os
import time
from contextlib import ExitStack, suppress
from typing import Final

from mpsguard.images.checkpoints.checkpoint import Checkpoint
from mpsguard.images.checkpoints.pieces import PIECE
from mpsguard.images.checkpoints.writing_session import WritingSession
from mpsguard.linux.descriptors import memfd
from mpsguard.vault.client.region import Chunk
from mpsguard.vault.wire import checkpoint_requests
from mpsguard.vault.wire.checkpoint_requests import (
    HEADER,
    OFFER_WORD,
    REGION,
    SIZE,
    CheckpointOutcome,
)
from mpsguard.vault.wire.errors import VaultError
from mpsguard.vault.wire.session_page import CheckpointRequest, SessionPage

_UNKNOWN: Final = -1


class RequestPage:
    """Owns the mapping of the region. Not for use by several threads at once, besides `is_new`."""

    def __init__(self, session: WritingSession) -> None:
        self._session = session
        self._memory: mmap.mmap | None = None
        self._words: memoryview | None = None
        self._asked: SessionPage | None = None
        self._seen = _UNKNOWN
        self._refused = False

    @property
    def offered(self) -> int:
        """Number of the publication that a receiver has all of; 0: none."""
        return 0 if self._words is None else self._words[OFFER_WORD]

    def descriptor(self) -> int:
        """Return a descriptor of the region, owned by the caller; it is open. It outlives the session."""
        return os.dup(self._fd)

    @property
    def is_new(self) -> bool:
        """Whether there may be a request that `take` has not returned yet; costs next to nothing."""
        asked = self._asked
        return not self._refused if asked is None else asked.newest[0] != self._seen

    def open(self) -> None:
        """Make or find the region, unless that was refused before: a program without one goes on."""
        if self._words is not None or self._refused:
            return
        # Until the region is there: what refuses it once, such as a quota, would do so at each publication.
        self._refused = True
        with (
            suppress(VaultError, OSError),
            ExitStack() as undo,
            self._session.open_or_create(REGION, new_page) as region,
        ):
            checkpoint_requests.check_layout(region.layout)
            fd = os.dup(region.fds[0])
            undo.callback(os.close, fd)
            self._memory = mmap.mmap(fd, SIZE, mmap.MAP_SHARED)
            undo.pop_all()
            self._fd = fd
            self._words = memoryview(self._memory).cast("Q")
            # What was asked of a writer before this one was not asked of this one.
            asked = self._session.page
            self._seen = asked.newest[0]
            self._asked = asked
            self._refused = False

    def take(self) -> CheckpointRequest | None:
        """Return what is asked for, once; None if there is no new request."""
        self.open()
        asked = self._asked
        if asked is None or asked.newest[0] == self._seen:
            return None
        word = asked.newest[0]
        found = asked.request()
        if found is not None or asked.newest[0] == word:
            # Whole, or not being written: looked at once.
            self._seen = word
        return found

    def tell(self, checkpoint: Checkpoint, state: str | None = None) -> None:
        """Write down how far a checkpoint is, for `mpsguard-ctl vault show`; ``state`` instead of its own."""
        if self._words is None:
            return
        ended = checkpoint.ended
        state = checkpoint.state.value if state is None else state
        if ended is not None and ended.refusal is not None:
            state = f"{state} ({ended.refusal.value})"
        outcome = CheckpointOutcome(
            checkpoint.image[:128],
            state,
            time.time(),
            0 if ended is None else ended.copied * PIECE,
            0.0 if ended is None else ended.took,
        )
        with suppress(OSError):
            checkpoint_requests.tell(self._fd, outcome, requested=checkpoint.is_requested)

    def close(self) -> None:
        """Unmap the region; safe to call twice."""
        self._asked = None
        words, self._words = self._words, None
        if words is None or self._memory is None:
            return
        words.release()
        self._memory.close()
        os.close(self._fd)
        self._memory = None
        self._refused = True


def new_page() -> tuple[Chunk, ...]:
    """Return new memory for the region; the caller owns its descriptor."""
    return (Chunk(memfd.holding("mpsguard-checkpoint", HEADER, SIZE), SIZE),)
