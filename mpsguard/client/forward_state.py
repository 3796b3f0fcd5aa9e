"""The record of the forward state, mapped: published by the writer, read by anybody."""

import mmap
import os

from mpsguard.vault import state_buffer
from mpsguard.vault.errors import StaleGenerationError
from mpsguard.vault.state_buffer import Publisher, State


class UnmappedError(StaleGenerationError):
    """Another thread has closed it meanwhile: the session has another record by now, or is closed."""


class ForwardState:
    """Owns the mapping of one generation's record."""

    def __init__(self, fd: int, capacity: int, generation: int, *, writable: bool) -> None:
        """Map ``fd``, which is closed in any case."""
        self.generation = generation
        self._closed = False
        self._capacity = capacity
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        try:
            self._memory = mmap.mmap(fd, state_buffer.size(capacity), mmap.MAP_SHARED, protection)
        finally:
            os.close(fd)
        self.publisher = Publisher(memoryview(self._memory), capacity, generation) if writable else None

    def latest(self) -> State | None:
        """The newest whole state, None if there is none; UnmappedError."""
        return state_buffer.latest(self._read, self._capacity)

    def is_of(self, generation: int, *, writable: bool) -> bool:
        """Whether it is the record of that generation, mapped in that way."""
        return self.generation == generation and (self.publisher is not None) == writable

    def is_over(self) -> bool:
        """Whether another generation has begun, in another record; UnmappedError."""
        return state_buffer.is_over(self._read)

    def close(self) -> None:
        """Unmap it."""
        self._closed = True
        if self.publisher is not None:
            self.publisher.close()
        self._memory.close()

    def check_mapped(self) -> None:
        """UnmappedError if it is closed."""
        if self._closed:
            raise UnmappedError("this session was closed, or has another record, meanwhile")

    def _read(self, at: int, length: int) -> bytes:
        try:
            return self._memory[at : at + length]
        except ValueError:
            self.check_mapped()
            raise
