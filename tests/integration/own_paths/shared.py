"""Guards that the tests of a file use one after the other: most of a test's time is the start of its guard."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tests.integration.guarded import Guarded


class SharedGuards:
    """Guards that several tests use, one after the other.

    A guard is closed instead of reused if its test failed, or if its public directory has become a link.
    """

    def __init__(self) -> None:
        self._guards: dict[object, Guarded] = {}

    @contextmanager
    def of(self, kind: object, start: Callable[[Guarded], object]) -> Iterator[Guarded]:
        """A guard of a kind: one of an earlier test, or else one that ``start`` starts."""
        guarded = self._guards.pop(kind, None)
        if guarded is None:
            guarded = Guarded()
        with ExitStack() as closing:
            closing.callback(guarded.close)
            if not guarded.process.runs:
                start(guarded)
            yield guarded
            if not guarded.public.is_symlink():
                _clear_away(guarded)
                self._guards[kind] = guarded
                closing.pop_all()

    def close(self) -> None:
        """End them all."""
        for guarded in self._guards.values():
            guarded.close()


def _clear_away(guarded: Guarded) -> None:
    """Remove what a test has left beside the guard's own files."""
    names = ("old", "elsewhere", "other", "file", "target", "mps/control.bak", "run/other")
    for path in (guarded.root / name for name in names):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
