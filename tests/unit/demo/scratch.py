"""A private directory with a short name, and the demo as a process in it."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.harness.leftovers import end_all

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


_ONE_SCENE = """
import sys
from examples.demo import main
from examples.demo.scenes import SCENES
main.SCENES = [scene for scene in SCENES if scene.name == sys.argv[1]]
sys.exit(main.main(sys.argv[2:]))
"""


def start_scene(name: str, temporary: Path) -> "subprocess.Popen[str]":
    """The demo with that scene alone."""
    return _start(["-c", _ONE_SCENE, name, "--fast"], temporary, {"PYTHONPATH": str(REPOSITORY)})


def start(temporary: Path, *options: str, **environment: str) -> "subprocess.Popen[str]":
    """Start `scripts/demo` in a process group of its own, its temporary files under `temporary`."""
    return _start([str(REPOSITORY / "scripts" / "demo"), *options], temporary, environment)


def _start(arguments: list[str], temporary: Path, environment: Mapping[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "TMPDIR": str(temporary), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
