"""The preload's parts include one another in one direction."""

import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from mpsguard.preload.build import SOURCES


def included(part: str) -> Iterator[str]:
    """Yield the parts with headers that a part's source or header includes: a part is a `.c` with its `.h`."""
    for path in SOURCES.rglob(f"{part}.[ch]"):
        names = re.findall(r'^#include "(?:binding/|second/)?(\w+)\.h"', path.read_text(), re.MULTILINE)
        yield from (name for name in names if name != part)


def test_there_is_no_circle() -> None:
    parts = {Path(path).stem for pattern in ("*.c", "*.h") for path in SOURCES.rglob(pattern)}
    order = list(TopologicalSorter({part: set(included(part)) for part in parts}).static_order())
    assert set(order) == parts
    assert order.index("lookup") < order.index("hook_table") < order.index("deepbind") < order.index("hooks")
