"""Imports of what workers need, as `python -m` does them, but from no directory to which others may write."""

import gc
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType


def load(module: str, option: str) -> ModuleType:
    """Import a module, also from the working directory; end the process with one line if there is none.

    Args:
        module: its name.
        option: of the command line, which names it.
    """
    directory = _importable()
    if directory is not None and str(directory) not in sys.path:
        # As `python -m` does it.
        sys.path.insert(0, str(directory))
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        # A module that is there and itself lacks another one is shown with its traceback.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        places = f"neither in {directory} nor in Python's path"
        if directory is None:
            places = "not in Python's path; nothing is imported from a directory to which others may write"
        sys.exit(f"mpsguard pool: {option}: no module {error.name}, {places}")


@contextmanager
def without_collector() -> Iterator[None]:
    """Make what stays: the collector looks at it once, at the end, and not again while an image is started.

    A framework makes so many objects in its imports that collections took a quarter of their time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    gc.collect()
    gc.freeze()


def _importable() -> Path | None:
    """Return the working directory; None if it is gone, a third user's, or any user may write to it."""
    try:
        directory = Path.cwd()
        found = directory.stat()
    except OSError:
        return None
    return directory if found.st_uid in {0, os.geteuid()} and not found.st_mode & stat.S_IWOTH else None
