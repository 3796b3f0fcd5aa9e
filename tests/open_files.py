"""What a process has open, seen from outside."""

import os
from contextlib import suppress


def open_files(pid: int) -> list[str]:
    """What each of its descriptors is, such as ``/memfd:name (deleted)``; nothing once it has ended."""
    links = []
    with suppress(FileNotFoundError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            # It may be closed meanwhile.
            with suppress(FileNotFoundError):
                links.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return links
