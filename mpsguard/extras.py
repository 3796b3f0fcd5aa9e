"""What to do where an extra of the project (`pyproject.toml`) is not installed."""

import importlib.util
import sys


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra where this program runs, or what to do where that has no pip."""
    if importlib.util.find_spec("pip") is None:
        # The packages' own Python: it belongs to the package manager.
        return f"{sys.prefix} has no pip; docs/start/install.md says how to get mpsguard[{extra}]"
    return f"{sys.executable} -m pip install 'mpsguard[{extra}]'"
