"""What was done, taken back in reverse order; a step that fails is kept and can be tried again."""

from collections.abc import Callable


class Undo:
    """The steps that take something back; each runs once to its success."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], None]] = []

    def push(self, step: Callable[[], None]) -> None:
        """A step that comes before all that are there."""
        self._steps.append(step)

    def run(self) -> None:
        """Take back what is left; stops at the first step that raises, which is the first of the next run."""
        while self._steps:
            self._steps[-1]()
            self._steps.pop()
