"""The descriptors that this process has open."""

import gc
import os
from typing import TypeAlias

from tests.open_files import numbered_files

Descriptors: TypeAlias = frozenset[tuple[int, str]]
"""The number of each, and what /proc says that it is."""


def open_descriptors() -> Descriptors:
    """Return those that are open now, to be compared with `opened_since`."""
    return frozenset(numbered_files(os.getpid()))


def opened_since(before: Descriptors) -> list[str]:
    """Return what has come, in words.

    Their number would not do: what earlier tests left to a thread, or to the collector, is closed at any moment of
    this one.
    """
    if open_descriptors() - before:
        # A descriptor of garbage is no leak; to collect takes a tenth of a second in a process that has run many tests.
        gc.collect()
    return [f"{number} -> {what}" for number, what in sorted(open_descriptors() - before)]
