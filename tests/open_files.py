"""What a process has open, seen from outside."""

import os
from contextlib import suppress


def numbered_files(pid: int) -> list[tuple[int, str]]:
    """Its descriptors, and what each is, such as ``/memfd:name (deleted)``; nothing once it has ended."""
    files = []
    with suppress(FileNotFoundError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            # It may be closed meanwhile.
            with suppress(FileNotFoundError):
                files.append((int(fd), os.readlink(f"/proc/{pid}/fd/{fd}")))
    return files


def open_files(pid: int) -> list[str]:
    """What each of its descriptors is."""
    return [what for _, what in numbered_files(pid)]
