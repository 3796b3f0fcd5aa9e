"""The files of the project, for tests of house rules."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tracked() -> list[Path]:
    """The files that are or would be tracked; skips the test where there is no git tree."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("not a git tree: which files belong to the project cannot be told")
    # A file that is deleted but not yet committed so is listed, and is not there.
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def text_of(path: Path) -> str:
    """The content, with what is not UTF-8 replaced."""
    return path.read_text(encoding="utf-8", errors="replace")


def is_python(path: Path) -> bool:
    """Whether a file is a module or a script of Python."""
    first_line = text_of(path).partition("\n")[0]
    return path.suffix == ".py" or (path.suffix == "" and first_line.startswith("#!") and "python" in first_line)
