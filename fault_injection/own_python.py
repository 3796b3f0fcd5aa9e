"""The project's environment, for scripts that are started with another Python. Needs the standard library alone."""

import os
import sys
from pathlib import Path
from typing import NoReturn

REPOSITORY = Path(__file__).resolve().parents[1]


def start_again(missing: str) -> NoReturn:
    """Run this script with the Python that `make venv` made, for want of a package; exit if that is missing too."""
    python = REPOSITORY / ".venv" / "bin" / "python"
    if not python.exists() or Path(sys.prefix) == python.parent.parent:
        sys.exit(f"{Path(sys.argv[0]).name}: no package {missing!r}; `make venv` installs what is needed")
    os.execv(python, [str(python), *sys.argv])  # noqa: S606
