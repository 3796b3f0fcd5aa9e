"""An event loop that cases are run in, one after the other."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class CaseLoop:
    """Owns an event loop. What goes wrong in its callbacks is raised as the case's own failure."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._failed)
        self._errors: list[BaseException] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        try:
            return self._loop.run_until_complete(work)
        finally:
            self._raise()

    def turn(self, begin: Callable[[], None]) -> None:
        """Call ``begin`` in the loop, and then what it has made ready."""

        async def once() -> None:
            begin()
            # Ready descriptors are looked at in one turn, and called in the next.
            for _ in range(3):
                await asyncio.sleep(0)

        self.run(once())

    def close(self) -> None:
        """Close the loop."""
        self._loop.close()

    def _failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._errors.append(context.get("exception") or RuntimeError(str(context.get("message"))))

    def _raise(self) -> None:
        errors, self._errors = self._errors, []
        if errors:
            raise errors[0]
