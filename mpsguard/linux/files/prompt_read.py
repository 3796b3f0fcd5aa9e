"""Reads a file that other users may write to, without waiting for them.

XFS takes the lock of a file for a buffered read(2), which a writer of the file can hold for as long as it likes. With
RWF_NOWAIT (preadv2(2)) the read fails instead, and begins to load what is not in memory. tmpfs and some other file
systems do not know the flag; those take no lock.
"""

import errno
import os


def read(fd: int, size: int, offset: int) -> bytes:
    """Return up to ``size`` bytes, fewer at the end of the file or if the rest is not to be had at once.

    Raises:
        BlockingIOError: nothing is to be had at once.
        OSError: it cannot be read.
    """
    content = bytearray(size)
    view = memoryview(content)
    got = 0
    while got < size:
        try:
            count = os.preadv(fd, [view[got:]], offset + got, os.RWF_NOWAIT)
        except BlockingIOError:
            if not got:
                raise
            break
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            return os.pread(fd, size, offset)
        if not count:
            break
        got += count
    return bytes(view[:got])
