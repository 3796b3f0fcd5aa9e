"""`mps-control-daemon mount-shm`: the /dev/shm of the MPS clients and servers of a node."""

import os
import subprocess
from pathlib import Path
from typing import Final

import psutil

from mpsguard.linux.files.directory import Directory

_DEADLINE: Final = 30.0


class MountError(Exception):
    """It cannot be mounted; one line says why."""


def mount(root: Path, *, on_host: bool) -> None:
    """Provide the clients' shared memory as ``shm`` below ``root``; raises MountError.

    Args:
        root: The root of the directories that MPS shares with its clients.
        on_host: Whether the servers run on the host. They and the clients have to use the same memory, which is the
            host's /dev/shm then: the host mounts it here, and it stays. Otherwise a tmpfs of half the machine's memory
            is mounted, in place of one that is there.
    """
    directory = root / "shm"
    if on_host:
        if not os.path.ismount(directory):
            raise MountError(f"{directory}: the host has to mount its /dev/shm there (docs/guides/drop-ins.md)")
        return
    if os.path.ismount(directory):
        _run("umount", str(directory))
    Directory.make(directory, 0o755).close()
    size = psutil.virtual_memory().total // 1024 // 2
    _run("mount", "-t", "tmpfs", "-o", f"rw,nosuid,nodev,noexec,relatime,size={size}k", "shm", str(directory))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE, check=False)
    if done.returncode != 0:
        raise MountError(f"{' '.join(command)}: {' '.join(done.stderr.split())}")
