"""Mounts of a test's own: made in a mount namespace that ends with the test."""

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

_CLONE_NEWNS: Final = 0x20000
_libc: Final = ctypes.CDLL(None, use_errno=True)


def in_own_namespace(body: Callable[[], None]) -> None:
    """Run ``body`` on a thread with a mount namespace of its own, which all that it starts has, too."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            if _libc.unshare(_CLONE_NEWNS):
                raise OSError(ctypes.get_errno(), "unshare")
            mount("--make-rprivate", "/")
            body()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def mount(*arguments: str | Path) -> None:
    """Run mount(8)."""
    subprocess.run(["mount", *map(str, arguments)], check=True, timeout=30)


def tmpfs(path: Path, options: str) -> None:
    """Mount an empty file system over a directory."""
    mount("-t", "tmpfs", "-o", options, "tmpfs", path)


def unmount(path: Path) -> None:
    """Take the uppermost mount away."""
    subprocess.run(["umount", "--lazy", str(path)], check=True, timeout=30)


def may_mount() -> bool:
    """Whether this user can mount file systems."""
    return os.geteuid() == 0
