"""A directory with our programs first on PATH and the vendor's behind them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

import pytest

from mpsguard.linux.processes import procfs
from tests import vendor
from tests.harness.leftovers import end_all
from tests.harness.waiting import PATIENCE
from tests.vendor import VendorMps

SCRIPT: Final = "#!{python}\nfrom mpsguard.guard.dropin.{module} import main\n\nmain()\n"
"""A start script as pip writes it."""


class Site:
    """A directory with our program first on PATH and the vendor's behind it."""

    def __init__(self, mps: VendorMps) -> None:
        # Short: a socket's path has at most 107 bytes.
        self.root = Path(tempfile.mkdtemp(prefix="mg-"))
        self.root.chmod(0o755)
        self.pipes = self.root / "mps"
        self.logs = self.root / "log"
        self.vendor = mps.control
        self.programs = self.root / "bin"
        self.programs.mkdir()
        self.program = self.install("nvidia-cuda-mps-control", "control_program")
        self.environment = mps.environment(self.pipes, self.logs)
        self.environment["PATH"] = f"{self.programs}{os.pathsep}{self.environment['PATH']}"

    def install(self, name: str, module: str) -> Path:
        """Put the start script of one of our programs first on PATH."""
        path = self.programs / name
        path.write_text(SCRIPT.format(python=sys.executable, module=module))
        path.chmod(0o755)
        return path

    def run(
        self,
        *arguments: str,
        program: Path | None = None,
        given: str = "",
        pipes: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run our program, or another one, to its end."""
        environment = {**self.environment, **(variables or {})}
        if pipes is not None:
            environment["CUDA_MPS_PIPE_DIRECTORY"] = str(pipes)
        return subprocess.run(
            [str(program or self.program), *arguments],
            input=given,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def processes(self, words: str) -> list[int]:
        """The processes of this site with these words in their command line."""
        every = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [pid for pid in every if words in (line := command(pid)) and str(self.root) in f"{line}{_pipes(pid)}"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end_all(self.root)
        shutil.rmtree(self.root, ignore_errors=True)


def command(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        return procfs.command(pid)
    except OSError:
        return ""


def _pipes(pid: int) -> str:
    return procfs.environment(pid).get("CUDA_MPS_PIPE_DIRECTORY", "")


def newest() -> VendorMps:
    """The newest branch of the vendor's daemon that is here, or a skip: what is ours does not differ between them."""
    found = [vendor.find(branch) for branch in reversed(vendor.BRANCHES)]
    there = [each for each in found if isinstance(each, VendorMps)]
    if not there:
        pytest.skip(str(found[0]))
    return there[0]
