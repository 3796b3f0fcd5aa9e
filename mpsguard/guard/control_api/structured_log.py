"""structlog without rich, for the guard's log: there exceptions are plain text.

Where rich is installed, structlog imports it, and pygments with it, for coloured exceptions: almost a third of what the
start of a guard costs.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_UNUSED: Final = ("better_exceptions", "colorama", "rich")
"""What structlog takes if it is there."""


@contextmanager
def _hidden(*names: str) -> Iterator[None]:
    """Let an import of these modules fail as if they were not installed, unless they are imported already."""
    modules: dict[str, Any] = sys.modules
    hidden = [name for name in names if name not in modules]
    # None has that meaning: "The import system", 5.3.1.
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]


with _hidden(*_UNUSED):
    import structlog

__all__ = ["structlog"]
