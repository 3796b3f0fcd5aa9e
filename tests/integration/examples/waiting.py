"""Waiting for programs that load PyTorch first, which takes a machine that has other work to do its time."""

import time
from collections.abc import Callable

DEADLINE = 240.0


def until(what: str, look: Callable[[], object]) -> None:
    """Call ``look`` until it gives something true."""
    due = time.monotonic() + DEADLINE
    while not look():
        assert time.monotonic() < due, f"not within {DEADLINE:g} s: {what}"
        time.sleep(0.02)
