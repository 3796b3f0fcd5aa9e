"""Where the tests find the vendor's own MPS daemon: unpacked by scripts/fetch-vendor-mps, never installed."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

BRANCHES = ("535", "550")
CACHE = Path(__file__).resolve().parent.parent / ".cache" / "vendor-mps"


@dataclass(frozen=True)
class VendorMps:
    """One branch of the vendor's daemon."""

    branch: str
    version: str
    control: Path
    server: Path

    def environment(self, pipe_directory: Path, log_directory: Path) -> dict[str, str]:
        """Return an environment in which this branch is the one found, by itself and by the process that starts it.

        The control daemon looks its server up in PATH.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "NVIDIA_"))}
        path = f"{self.control.parent}{os.pathsep}{self.server.parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
        return {
            **kept,
            "PATH": path,
            "CUDA_MPS_PIPE_DIRECTORY": str(pipe_directory),
            "CUDA_MPS_LOG_DIRECTORY": str(log_directory),
        }

    def ask(self, command: str, environment: dict[str, str], *, deadline_s: float = 10.0) -> str:
        """Type one command into the vendor's own command line and return what it prints."""
        answer = subprocess.run(
            [str(self.control)],
            input=f"{command}\n",
            env=environment,
            capture_output=True,
            text=True,
            timeout=deadline_s,
            check=True,
        )
        return answer.stdout.strip()


def find(branch: str, cache: Path = CACHE) -> VendorMps | str:
    """Return the branch's daemon, or why it is not there (the text of a skip)."""
    root = cache / branch
    control, server = root / "usr/bin/nvidia-cuda-mps-control", root / "usr/sbin/nvidia-cuda-mps-server"
    try:
        # Written last by the fetching script: with it, the rest is whole.
        version = (root / "VERSION").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return f"vendor MPS {branch} is not here: {_reason(branch, cache)}"
    if not (os.access(control, os.X_OK) and os.access(server, os.X_OK)):
        return f"vendor MPS {branch} ({version}) is not whole: run scripts/fetch-vendor-mps --refresh"
    return VendorMps(branch, version, control, server)


def _reason(branch: str, cache: Path) -> str:
    try:
        return (cache / f"{branch}.unavailable").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return "run scripts/fetch-vendor-mps"
