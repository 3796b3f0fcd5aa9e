"""The page of a session: what the guard tells the session's clients, in memory that they can only read.

The guard has the page mapped and stores words into it: that is no system call, and waits for no lock of the file's
that another process could hold. Clients get a descriptor that can be neither written nor mapped writable. A session has
one page for as long as it exists, stored in the bundle of its manifest.

Layout, in 8-byte words of native byte order: magic; the session's generation, which is over for a client that knows an
earlier one; the word of the newest request for a checkpoint (its number, and above it the CRC-32 of the request); then
the request: whether a handover is to follow, and the image's name behind its length.
"""

import errno
import mmap
import os
import struct
import zlib
from typing import Final, NamedTuple, Self

from mpsguard.linux.descriptors import memfd
from mpsguard.vault.wire.errors import BadRequestError
from mpsguard.vault.wire.region import check_name

SIZE: Final = 4096
RELEASED: Final = (1 << 64) - 1
"""Generation of a session that was released."""
_MAGIC: Final = 0x4D50_5347_5041_4731
_GENERATION_WORD: Final = 1
_REQUEST_WORD: Final = 2
_REQUEST_AT: Final = 24
_REQUEST: Final = struct.Struct("=II")
"""Whether a handover follows, and the length of the name behind."""
_MOST_NAME: Final = 255
_MASK: Final = 0xFFFF_FFFF


class CheckpointRequest(NamedTuple):
    """A checkpoint that the writer is asked for."""

    image: str
    handover: bool
    """Whether the writer is to stand still behind the cut until another process takes over."""


class SessionPage:
    """A client's view of the page. Owns the mapping; safe for use by several threads."""

    def __init__(self, fd: int) -> None:
        """Map ``fd``, which stays the caller's; raise OSError."""
        self._memory = mmap.mmap(fd, SIZE, mmap.MAP_SHARED, mmap.PROT_READ)
        self._words = memoryview(self._memory).cast("Q")
        self.generation = self._words[_GENERATION_WORD : _GENERATION_WORD + 1]
        """One word: the session's generation at this moment, or `RELEASED`."""
        self.newest = self._words[_REQUEST_WORD : _REQUEST_WORD + 1]
        """One word, which changes with each request."""

    def request(self) -> CheckpointRequest | None:
        """Return the newest request; None if there is none, or it is being written."""
        return requested(self._memory[:])

    def close(self) -> None:
        """Unmap the page. A later access raises ValueError."""
        for view in (self.generation, self.newest, self._words):
            view.release()
        self._memory.close()


class OwnPage:
    """The guard's side: owns a writable descriptor, which no client gets, and the mapping."""

    def __init__(self, fd: int) -> None:
        """Take ownership of a descriptor from `create`, also on failure; raise OSError."""
        self.fd = fd
        try:
            self._memory = mmap.mmap(fd, SIZE)
        except ValueError:
            os.close(fd)
            raise OSError(errno.EINVAL, "is shorter than the page of a session") from None
        except BaseException:
            os.close(fd)
            raise
        self._words = memoryview(self._memory).cast("Q")
        if self._words[0] != _MAGIC:
            self.close()
            raise OSError(errno.EINVAL, "is not the page of a session")

    @classmethod
    def create(cls, generation: int) -> Self:
        """Create the page of a session of that generation; raise OSError."""
        # All of it is written here, so that a later store needs no memory: without any it would raise SIGBUS.
        return cls(memfd.holding("mpsguard-page", struct.pack("=QQ", _MAGIC, generation).ljust(SIZE, b"\0")))

    @property
    def generation(self) -> int:
        """The generation that clients see."""
        return self._words[_GENERATION_WORD]

    @generation.setter
    def generation(self, generation: int) -> None:
        self._words[_GENERATION_WORD] = generation

    def ask(self, request: CheckpointRequest) -> int:
        """Write down a request for a checkpoint and return its number."""
        name = request.image.encode()
        assert 0 < len(name) <= _MOST_NAME
        content = _REQUEST.pack(request.handover, len(name)) + name
        number = (self._words[_REQUEST_WORD] & _MASK) + 1 & _MASK
        self._memory[_REQUEST_AT : _REQUEST_AT + len(content)] = content
        # Last, so that a writer that sees the number finds the request. If another one comes between, the checksum
        # tells.
        self._words[_REQUEST_WORD] = number | zlib.crc32(content) << 32
        return number

    def copy(self) -> int:
        """Return a descriptor for a client, owned by the caller; raise OSError."""
        return memfd.read_only(self.fd)

    def close(self) -> None:
        """Unmap the page and close the descriptor."""
        self._words.release()
        self._memory.close()
        os.close(self.fd)


def requested(content: bytes) -> CheckpointRequest | None:
    """Return the newest request in a page's content; None if it is not whole, or none of a checkpoint."""
    (word,) = struct.unpack_from("=Q", content, _REQUEST_WORD * 8)
    handover, length = _REQUEST.unpack_from(content, _REQUEST_AT)
    if not 0 < length <= _MOST_NAME:
        return None
    request = content[_REQUEST_AT : _REQUEST_AT + _REQUEST.size + length]
    if zlib.crc32(request) != word >> 32:
        return None
    try:
        text = request[_REQUEST.size :].decode()
        check_name("image", text)
    except (UnicodeDecodeError, BadRequestError):
        return None
    return CheckpointRequest(text, bool(handover))
