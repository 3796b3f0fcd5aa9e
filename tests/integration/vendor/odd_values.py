"""What people write behind a command, and odd values of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.spellings import measured, plain

_HERE: Final = Path(__file__).parent


def _rows(name: str) -> list[str]:
    lines = (_HERE / name).read_text("ascii").splitlines()
    return [line for line in lines if not line.startswith("#")]


PUBLIC: Final = tuple(tuple(row.split("\t")) for row in _rows("public_commands.tsv"))
"""Repository and number, command; SERVER stands for a server's pid."""

_LONG: Final = ("9" * 40, "1" * 200, "5" + "0" * 300, "0" * 500 + "5", "x" * 1000, "5 " * 200, "5" + " " * 3000 + "6")

VALUES: Final[tuple[str, ...]] = tuple(
    dict.fromkeys([*(row.asked for row in measured()), *map(plain, _rows("odd_values.txt")), *_LONG])
)

NO_COMMANDS: Final = (*map(plain, _rows("no_commands.txt")), "x" * 300, "x" * 2000)

SERVERS: Final = (
    *("SERVER", "+SERVER", "0SERVER", "SERVERx", "SERVER.0", "SERVER%", "SERVER+2^32", "-SERVER", "1", "CLIENT0"),
)
"""How a server's pid is written: some are another number, or none."""

_STEP: Final = 8
"""Of the values that are not the first ones of their kind, each command gets one in so many."""


def _kind(value: str) -> frozenset[str]:
    """The characters that a value has, with all digits as one, and all letters."""
    return frozenset(
        "9" if each in "0123456789" else "a" if each.isascii() and each.isalpha() else each for each in value
    )


_FIRST_OF_KIND: Final = frozenset({_kind(value): value for value in reversed(VALUES)}.values())


def sample(number: int) -> tuple[str, ...]:
    """The values for a command with this number, the same in every run: one of each kind, and some of the others.

    Commands with numbers that follow each other get others, so that some command has each value.
    """
    return tuple(value for at, value in enumerate(VALUES) if value in _FIRST_OF_KIND or at % _STEP == number % _STEP)
