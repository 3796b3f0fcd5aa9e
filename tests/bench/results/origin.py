"""Where a result comes from: the commit that was measured and the machine it was measured on."""

import os
import re
import subprocess
from collections import Counter
from typing import Final, NamedTuple

import msgspec

from tests.bench.results.schema import DIRECTORY, Commit, ResultError

REPOSITORY: Final = DIRECTORY.parent.parent
COMMIT_VARIABLE: Final = "MPSGUARD_COMMIT"


class Gpu(NamedTuple):
    """The accelerator and the stack above it; all None without one."""

    name: str | None
    driver: str | None
    cuda: str | None


def commit() -> str:
    """Name the commit, with `-dirty` if the tree differs from it; where there is no git, MPSGUARD_COMMIT says it.

    Raises ResultError without either, or for what names none: a number without a commit cannot be looked into later.
    """
    named = os.environ.get(COMMIT_VARIABLE)
    if named:
        try:
            return msgspec.convert(named, Commit)
        except msgspec.ValidationError:
            raise ResultError(
                f"{COMMIT_VARIABLE}: {named!r} is no commit: 7 to 40 hexadecimal digits, and -dirty if need be"
            ) from None
    head = _output("git", "-C", str(REPOSITORY), "rev-parse", "HEAD")
    # The results themselves do not count: the second suite of a session would else always be "dirty".
    changes = _output("git", "-C", str(REPOSITORY), "status", "--porcelain", "--", ".", ":!docs/results")
    if head is None or changes is None:
        raise ResultError(f"no commit to name: not a git tree with a commit, and {COMMIT_VARIABLE} is not set")
    return head.strip() + ("-dirty" if changes.strip() else "")


def gpu() -> Gpu:
    """Ask nvidia-smi; a machine without it has no GPU."""
    listed = _output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    rows = [line.split(", ") for line in (listed or "").splitlines() if line.count(", ") == 1]
    if not rows:
        return Gpu(None, None, None)
    names = Counter(name for name, _ in rows)
    return Gpu(
        name=", ".join(f"{count} x {name}" if count > 1 else name for name, count in names.items()),
        driver=rows[0][1],
        cuda=cuda_version(_output("nvidia-smi") or ""),
    )


def cuda_version(header: str) -> str | None:
    """The newest CUDA the driver supports, from what nvidia-smi prints."""
    found = re.search(r"CUDA (?:UMD )?Version\s*:\s*([0-9.]+)", header)
    return found.group(1) if found else None


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
