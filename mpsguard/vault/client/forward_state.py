"""The mapped state buffer: the writer publishes in it, every process of the session reads it."""

import mmap
import os

from mpsguard.vault.wire import state_buffer
from mpsguard.vault.wire.errors import StaleGenerationError
from mpsguard.vault.wire.session_page import SessionPage
from mpsguard.vault.wire.state_buffer import Publisher, State


class UnmappedError(StaleGenerationError):
    """Another thread has closed the buffer: the session has a new one, or is closed."""


class ForwardState:
    """Owns the mapping of one generation's state buffer."""

    def __init__(self, fd: int, capacity: int, generation: int, page: SessionPage, *, writable: bool) -> None:
        """Map ``fd`` and close it, also on failure. ``page``: the session's; it stays the caller's."""
        self.generation = generation
        self._page = page
        self._closed = False
        self._capacity = capacity
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        try:
            self._memory = mmap.mmap(fd, state_buffer.size(capacity), mmap.MAP_SHARED, protection)
        finally:
            os.close(fd)
        self.publisher = (
            Publisher(memoryview(self._memory), capacity, generation, page.generation) if writable else None
        )

    def latest(self) -> State | None:
        """Return the newest whole state or None; raise UnmappedError."""
        return state_buffer.latest(self._read, self._capacity)

    def is_of(self, generation: int, *, writable: bool) -> bool:
        """Return whether this is the buffer of that generation, mapped with that access."""
        return self.generation == generation and (self.publisher is not None) == writable

    def is_over(self) -> bool:
        """Return whether the session's generation is another one by now; raise UnmappedError."""
        try:
            return self._page.generation[0] != self.generation
        except ValueError:
            self.check_mapped()
            raise

    def close(self) -> None:
        """Unmap the buffer."""
        self._closed = True
        if self.publisher is not None:
            self.publisher.close()
        self._memory.close()

    def check_mapped(self) -> None:
        """Raise UnmappedError if the buffer was closed."""
        if self._closed:
            raise UnmappedError("this session was closed, or has another state buffer now")

    def _read(self, at: int, length: int) -> bytes:
        try:
            return self._memory[at : at + length]
        except ValueError:
            self.check_mapped()
            raise
