"""Watch over the guard's own paths: what was removed or changed is made again, or the guard's health says why not.

Looking is one stat(2) for each path, making again a few calls; both on a thread of their own, since a file system may
not answer (NFS), and a directory that every user may list can be locked by any of them (docs/concepts/security.md).
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.control_api.health import PathFlaw
from mpsguard.guard.metrics.registry import Metrics
from mpsguard.linux.pacing import BurstLimit
from mpsguard.linux.side_threads import SharedThreads

_LOOK: Final = 0.5
"""Seconds between two looks. It also bounds the work for what is removed again and again."""
_ANSWERS: Final = 1.0
"""Seconds after which a file system that has not answered counts as one that does not."""
_OFTEN: Final = (10, 20.0)
"""Mended so often in so many seconds, a path is one that cannot be relied on."""
_END: Final = 1.0
"""Seconds for a look at the guard's end; then its thread is left."""

T = TypeVar("T")


class PathError(Exception):
    """A path cannot be mended; one line says why."""


class OwnPath(Protocol):
    """Something of the guard's that lies at a path. All but `close`, and what `mend` returns, is called on a thread."""

    path: Path
    is_for_programs: bool
    """Whether programs that start need it."""

    def changed(self) -> str | None:
        """Return what is not as it was made, in words; None if all is. OSError if that cannot be told."""

    def keeps_out(self) -> bool:
        """Return whether programs that start now run without MPS, as it is."""

    def mend(self) -> Callable[[], None]:
        """Make it again; return what remains to be done in the event loop. PathError or OSError."""

    def close(self) -> None:
        """Close what is held of it; no look follows."""


class PathWatch:
    """Looks at all paths again and again; the first ones first, as later ones may lie in them."""

    def __init__(self, paths: Sequence[OwnPath], events: EventStream, metrics: Metrics) -> None:
        self._paths = tuple(paths)
        self._events = events
        self._metrics = metrics
        self._threads: SharedThreads[str] = SharedThreads("paths", 1, 1)
        self._at = self._paths[0]
        """What the thread looks at."""
        self._mended = {each.path: BurstLimit(*_OFTEN) for each in paths}
        self._flaws: dict[Path, PathFlaw] = {}

    @property
    def flaws(self) -> tuple[PathFlaw, ...]:
        """What is wrong now, the gravest first."""
        return tuple(sorted(self._flaws.values(), key=lambda flaw: not flaw.keeps_out))

    @property
    def intact(self) -> dict[str, bool]:
        """Whether each path is as it should be."""
        return {str(each.path): each.path not in self._flaws for each in self._paths}

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            while True:
                changed = await self._call(self._look)
                for each in self._paths:
                    what = changed.get(each.path)
                    self._settle(each, what, None if what is None else await self._mend(each, what))
                await asyncio.sleep(_LOOK)
        finally:
            # A thread that waits for a file system is left, with what it holds.
            if self._threads.close(_END):
                for each in self._paths:
                    each.close()

    def _look(self) -> dict[Path, str]:
        """Return what has become of each path that has changed."""
        found = {}
        for each in self._paths:
            self._at = each
            what = _changed(each)
            if what is not None:
                found[each.path] = what
        return found

    async def _mend(self, each: OwnPath, what: str) -> PathFlaw | None:
        """Mend a path; return what is wrong still."""
        self._at = each
        kept_out = await self._call(each.keeps_out)
        try:
            finish = await self._call(each.mend)
        except (PathError, OSError) as error:
            text = f"{what}; it cannot be mended: {_words(error)}"
        else:
            finish()
            self._metrics.paths_mended.labels(str(each.path)).inc()
            still = await self._call(partial(_changed, each))
            now = asyncio.get_running_loop().time()
            often = self._mended[each.path].wait(now) > 0
            self._mended[each.path].happened(now)
            if still is None and not often:
                return None
            again = f"is removed or changed again and again ({_OFTEN[0]} times in {_OFTEN[1]:g} s)"
            if still is None:
                return PathFlaw(str(each.path), again, kept_out)
            text = f"{still}, although it was made again"
        return PathFlaw(str(each.path), text, await self._call(each.keeps_out))

    def _settle(self, each: OwnPath, what: str | None, flaw: PathFlaw | None) -> None:
        """Remember what is wrong with a path, or that nothing is any more, and publish it once."""
        before = self._flaws.get(each.path)
        often = self._mended[each.path].wait(asyncio.get_running_loop().time()) > 0
        if flaw is not None:
            self._flaws[each.path] = flaw
            # What goes on and on fills no log.
            if before is None or (before.text != flaw.text and not often):
                self._events.publish("path_lost", "", path=flaw.path, detail=flaw.text, keeps_out=flaw.keeps_out)
        elif before is None and what is None:
            return
        elif not often:
            self._flaws.pop(each.path, None)
            self._events.publish("path_mended", "", path=str(each.path), detail=what or "as it was made again")

    async def _call(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns on the thread; while it takes too long, that is a flaw."""
        task = asyncio.ensure_future(self._threads.call("", work, float("inf")))
        try:
            done, _ = await asyncio.wait({task}, timeout=_ANSWERS)
            if not done:
                each = self._at
                flaw = PathFlaw(str(each.path), "is on a file system that does not answer", each.is_for_programs)
                self._flaws[each.path] = flaw
                self._events.publish("path_lost", "", path=flaw.path, detail=flaw.text, keeps_out=flaw.keeps_out)
            return await task
        finally:
            task.cancel()


def _changed(each: OwnPath) -> str | None:
    try:
        return each.changed()
    except OSError as error:
        return f"cannot be looked at: {_words(error)}"


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
