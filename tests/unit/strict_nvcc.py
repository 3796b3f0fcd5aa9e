"""What nvcc says of a CUDA program of ours when every warning is an error."""

import shutil
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.bench.core.programs import CUDA
from tests.harness.kept import compiler, kept

_FLAGS: Final = (
    *("-std=c++20", "-O2", "-arch=sm_90"),
    *("-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror"),
)


def compiles(name: str, *flags: str) -> None:
    """Fail with nvcc's words unless it has none; what it was content with is not compiled again. Skips without nvcc."""
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    parts: list[Path | str] = [CUDA / name, *sorted(CUDA.rglob("*.cuh")), *sorted(CUDA.rglob("*.h")), *_FLAGS, *flags]
    kept(f"nvcc-{name}", *parts, compiler("nvcc"), compiler("gcc"), make=partial(_compile, CUDA / name, flags))


def _compile(source: Path, flags: Sequence[str], directory: Path) -> None:
    command = ["nvcc", *_FLAGS, *flags, "-c", str(source), "-o", str(directory / "program.o")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    (directory / "program.o").unlink()
