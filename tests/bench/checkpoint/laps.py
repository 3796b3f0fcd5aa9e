"""How long steps take that a program makes within one call, told by the functions that make them."""

import functools
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from tests.bench.core.events import Event


class Laps:
    """Watches functions until the block ends, and keeps the seconds of each call."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self._undo = ExitStack()

    def watch(self, owner: Any, name: str, step: str) -> None:
        """Have a function, by its name in ``owner``, say how long each call takes."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def timed(*args: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **more)
            finally:
                self.seconds.setdefault(step, []).append(time.perf_counter() - began)

        setattr(owner, name, timed)
        self._undo.callback(setattr, owner, name, function)

    def __enter__(self) -> "Laps":
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()


def described(told: Sequence[Event]) -> str:
    """The milliseconds of each step, as the events' member ``steps`` has them, one after the other."""
    laps = [dict(each.members["steps"]) for each in told if isinstance(each.members["steps"], dict)]
    names = dict.fromkeys(name for each in laps for name in each)
    return "; ".join(f"{name} {'/'.join(f'{1e3 * each.get(name, 0.0):.0f}' for each in laps)} ms" for name in names)
