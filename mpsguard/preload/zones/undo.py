"""A list of undo steps, run in reverse order; a step that fails is kept and can be retried."""

from collections.abc import Callable


class Undo:
    """Steps that undo something; each runs until it has succeeded once."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], None]] = []

    def push(self, step: Callable[[], None]) -> None:
        """Add a step that runs before all existing ones."""
        self._steps.append(step)

    def run(self) -> None:
        """Run the remaining steps; stop at the first that raises, with which the next run begins."""
        while self._steps:
            self._steps[-1]()
            self._steps.pop()
