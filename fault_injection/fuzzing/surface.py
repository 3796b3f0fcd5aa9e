"""What the campaign needs of a surface: how a case is made, and how the code under test is given it."""

from abc import ABC, abstractmethod
from random import Random
from typing import ClassVar, Final, Generic, TypeVar

C = TypeVar("C")

PURE_PATIENCE: Final = 10.0
"""Seconds after which a case in one process is a hang. The slowest takes some 20 ms; a busy machine may stop the
process for a second or two."""


class BrokenPromiseError(Exception):
    """The code under test neither raised nor did what it documents."""


class Surface(ABC, Generic[C]):
    """One reader of strangers' input. Owns what its cases need; `close` gives it back."""

    name: ClassVar[str]
    share: ClassVar[int]
    """Cases of a campaign, in proportion to those of the other surfaces."""
    patience: ClassVar[float] = PURE_PATIENCE
    """Seconds after which a case counts as a hang."""
    bounded: ClassVar[bool] = True
    """Whether the memory of the worker is bounded; not where it starts other processes."""

    @abstractmethod
    def make(self, chance: Random) -> C:
        """Return a case; the same for the same ``chance``."""

    @abstractmethod
    def feed(self, case: C) -> None:
        """Give a case to the code under test, as the guard does.

        Raises:
            Exception: anything means that a stranger can make the caller fail; what the callers handle is caught here.
        """

    def check(self) -> None:
        """After many cases: raise if the code under test is worse off than before."""

    def close(self) -> None:
        """Give everything back."""
