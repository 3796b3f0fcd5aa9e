"""Outside programs that building needs, each with a deadline and its own words if it fails."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class BuildError(Exception):
    """A package cannot be built; the text is one line for the reader and what the program said."""


def call(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    deadline: float = 300.0,
) -> str:
    """Run a program to its end.

    Args:
        command: Program and arguments.
        cwd: Where it runs; here if None.
        environment: All of its variables; this process's if None.
        deadline: Seconds it may take.

    Returns:
        Its standard output.

    Raises:
        BuildError: It is not installed, failed, or took too long.
    """
    words = " ".join(map(str, command))
    try:
        done = subprocess.run(
            list(map(str, command)),
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=deadline,
            check=False,
        )
    except FileNotFoundError:
        raise BuildError(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise BuildError(f"{words}: not done within {deadline:g} s") from None
    if done.returncode:
        raise BuildError(f"{words}: exit status {done.returncode}\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout
