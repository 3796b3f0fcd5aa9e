"""What to do where an extra of the project (`pyproject.toml`) is missing, and where the pages are that say more."""

import importlib.util
import sys
from pathlib import Path
from typing import Final

_INSTALLED: Final = Path("/usr/share/doc/mpsguard")
"""Where deb and rpm have the documentation."""


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra where this program runs, or what to do where that has no pip."""
    if importlib.util.find_spec("pip") is None:
        # The packages' own Python: it belongs to the package manager.
        return f"{sys.prefix} has no pip; {page('docs/start/install.md')} says how to get mpsguard[{extra}]"
    return f"{sys.executable} -m pip install 'mpsguard[{extra}]'"


def page(name: str) -> str:
    """Return the place of a page of the documentation, by its name in the repository: where this program has it."""
    places = (Path(sys.prefix) / "share" / "doc" / "mpsguard", _INSTALLED)
    found = next((place / name for place in places if (place / name).exists()), None)
    return str(found) if found is not None else name
