"""Copies of several descriptors: all of them, or none."""

import os
from collections.abc import Sequence


def copies(fds: Sequence[int]) -> tuple[int, ...]:
    """Return close-on-exec duplicates, owned by the caller.

    Raises:
        OSError: (EMFILE) there is no room for all of them; none was created.
    """
    made: list[int] = []
    try:
        made.extend(os.dup(fd) for fd in fds)
    except BaseException:
        for fd in made:
            os.close(fd)
        raise
    return tuple(made)
