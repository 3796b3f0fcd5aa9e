"""A private directory with a short name, and the demo as a process in it."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpu_suite.core.leftovers import end_all

REPOSITORY = Path(__file__).resolve().parents[3]
DEADLINE = 240.0


@contextmanager
def directory() -> Iterator[Path]:
    """Short, unlike pytest's: a socket's path has at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="dt-"))
    try:
        yield path
    finally:
        end_all(path)
        shutil.rmtree(path, ignore_errors=True)


def start(temporary: Path, *options: str, **environment: str) -> "subprocess.Popen[str]":
    """Start `scripts/demo` in a process group of its own, its temporary files under `temporary`."""
    variables: Mapping[str, str] = {**os.environ, "TMPDIR": str(temporary), **environment}
    return subprocess.Popen(
        [sys.executable, str(REPOSITORY / "scripts" / "demo"), *options],
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
