"""The writer's side of the page by which others ask for checkpoints (`mpsguard.vault.checkpoint_requests`)."""

import mmap
import os
import time
from contextlib import ExitStack, suppress
from typing import Final

from mpsguard.client.checkpoints.checkpoint import Checkpoint
from mpsguard.client.checkpoints.pieces import PIECE
from mpsguard.client.checkpoints.writing_session import WritingSession
from mpsguard.client.region import Chunk
from mpsguard.linux.descriptors import memfd
from mpsguard.vault import checkpoint_requests
from mpsguard.vault.checkpoint_requests import (
    HANDOVER_WORD,
    HEADER,
    OFFER_WORD,
    REGION,
    REQUEST_WORD,
    SIZE,
    CheckpointOutcome,
)
from mpsguard.vault.errors import VaultError

_UNKNOWN: Final = -1


class RequestPage:
    """Owns the mapping of the page. Not for use by several threads at once, besides `is_new`."""

    def __init__(self, session: WritingSession) -> None:
        self._session = session
        self._memory: mmap.mmap | None = None
        self._words: memoryview | None = None
        self._seen = _UNKNOWN
        self._refused = False
        self.hands_over = False
        """Whether what `take` returned last is to be followed by a handover."""

    @property
    def offered(self) -> int:
        """Number of the publication that a receiver has all of; 0: none."""
        return 0 if self._words is None else self._words[OFFER_WORD]

    def descriptor(self) -> int:
        """Return a descriptor of the page, owned by the caller; the page is open. It outlives the session."""
        return os.dup(self._fd)

    @property
    def is_new(self) -> bool:
        """Whether there may be a request that `take` has not returned yet; costs next to nothing."""
        words = self._words
        return not self._refused if words is None else words[REQUEST_WORD] != self._seen

    def open(self) -> None:
        """Make or find the page, unless that was refused before: a program without one goes on."""
        if self._words is not None or self._refused:
            return
        # Until the page is there: what refuses it once, such as a quota, would do so at each publication.
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
            self._seen = self._words[REQUEST_WORD]
            self._refused = False

    def take(self) -> str | None:
        """Return the image that is asked for, once; None if there is no new request."""
        self.open()
        words, memory = self._words, self._memory
        if words is None or memory is None or words[REQUEST_WORD] == self._seen:
            return None
        word = words[REQUEST_WORD]
        found = checkpoint_requests.requested(memory[:])
        if found is not None or words[REQUEST_WORD] == word:
            # Whole, or not being written: looked at once.
            self._seen = word
            self.hands_over = bool(words[HANDOVER_WORD])
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
        """Unmap the page; safe to call twice."""
        words, self._words = self._words, None
        if words is None or self._memory is None:
            return
        words.release()
        self._memory.close()
        os.close(self._fd)
        self._memory = None
        self._refused = True


def new_page() -> tuple[Chunk, ...]:
    """Return new memory for the page; the caller owns its descriptor."""
    return (Chunk(memfd.holding("mpsguard-checkpoint", HEADER, SIZE), SIZE),)
