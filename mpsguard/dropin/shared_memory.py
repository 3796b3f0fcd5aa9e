"""`mps-control-daemon mount-shm`: the /dev/shm of the MPS clients and servers of a node."""

import os
import subprocess
from pathlib import Path
from typing import Final

import psutil

_DEADLINE: Final = 30.0


class MountError(Exception):
    """It cannot be mounted; one line says why."""


def mount(root: Path) -> None:
    """Mount a tmpfs of half the machine's memory on ``shm`` below ``root``, in place of one that is there."""
    directory = root / "shm"
    if os.path.ismount(directory):
        _run("umount", str(directory))
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    size = psutil.virtual_memory().total // 1024 // 2
    _run("mount", "-t", "tmpfs", "-o", f"rw,nosuid,nodev,noexec,relatime,size={size}k", "shm", str(directory))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE, check=False)
    if done.returncode != 0:
        raise MountError(f"{' '.join(command)}: {' '.join(done.stderr.split())}")
