"""Running other programs: with a deadline, and with their last words when they fail."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from kmod_patch.errors import KmodError, ToolError


def run(
    command: Sequence[str | Path], *, deadline_s: float, failure: type[KmodError], directory: Path | None = None
) -> str:
    """What it printed; raises ToolError if it is missing or does not end, and ``failure`` if it fails."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=directory,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=deadline_s,
        )
    except FileNotFoundError:
        raise ToolError(f"{name} is not installed") from None
    except PermissionError:
        raise ToolError(f"{command[0]}: may not be run") from None
    except subprocess.TimeoutExpired:
        raise ToolError(f"{name} did not end within {deadline_s:.0f} s") from None
    if done.returncode != 0:
        raise failure(f"{name}: {told(done.stdout) or f'ended with status {done.returncode}'}")
    return done.stdout


def told(output: str) -> str:
    """The line that says most: the first that speaks of an error, else the last."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() and len(line) < 500]
    return (errors or lines[-1:] or [""])[0]
