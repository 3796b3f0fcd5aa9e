"""Words and numbers as the control daemon takes them off a command: C's scanf, strtol, strtoull and strtod."""

from __future__ import annotations

import math
import re

_BLANKS = " \t\n\v\f\r"
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_REAL = re.compile(
    r"(?P<sign>[+-]?)(?:0[xX](?P<hex>(?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?\d+)?)"
    r"|(?P<decimal>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?))",
    re.ASCII,
)
_INT = 1 << 32
_LONG = 1 << 63
_UINT64 = (1 << 64) - 1


class Scanner:
    """A format that is worked off from left to right: after the first part that does not match, nothing does."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._failed = False

    def word(self) -> str:
        """%s; empty if there is none."""
        self._skip()
        word = re.split(f"[{_BLANKS}]", self._text, maxsplit=1)[0]
        return self._take(word)

    def word_of(self, *beginnings: str) -> str:
        """%s if the word begins so; else nothing is taken."""
        self._skip()
        return self.word() if self._text.startswith(beginnings) else ""

    def integer(self) -> int | None:
        """%d: what an int keeps of it."""
        self._skip()
        found = _INTEGER.match(self._text)
        text = self._take(found[0] if found else "")
        return int32(text) if text else None

    def real(self) -> float:
        """%lf; 0 if there is none."""
        self._skip()
        return 0.0 if self._failed else real(self._text)

    def option(self) -> tuple[str, int]:
        """-%c %d: the letter, and the number behind it."""
        self._skip()
        found = re.match(r"-(?s:(.))", self._text)
        self._take(found[0] if found else "")
        return (found[1] if found else "", self.integer() or 0)

    def _skip(self) -> None:
        self._text = self._text.lstrip(_BLANKS)

    def _take(self, part: str) -> str:
        self._failed = self._failed or not part
        if self._failed:
            return ""
        self._text = self._text[len(part) :]
        return part


def command(line: str) -> tuple[str, str]:
    """A command line's name, and what follows it."""
    line = line.lstrip(_BLANKS)
    name = re.split(f"[{_BLANKS}]", line, maxsplit=1)[0]
    return name, line[len(name) :]


def real(text: str) -> float:
    """strtod, of finite numbers; 0 for all else, which no command takes either."""
    found = _REAL.match(text)
    if found is None:
        return 0.0
    try:
        value = float.fromhex(found["hex"]) if found["hex"] else float(found["decimal"])
    except OverflowError:
        value = math.inf
    return -value if found["sign"] == "-" else value


def int32(text: str) -> int:
    """strtol, and what an int keeps of it."""
    value = min(max(_whole(text)[0], -_LONG), _LONG - 1)
    return (value + _INT // 2) % _INT - _INT // 2


def limit_in_bytes(text: str) -> int:
    """strtoull and a letter: G is GiB, all else MiB; 0 for none."""
    number, rest = _whole(text)
    number = _UINT64 if abs(number) > _UINT64 else number & _UINT64
    return (number << (30 if rest[:1] in ("G", "g") else 20)) & _UINT64


def limit_as_text(limit: int) -> str:
    """Bytes as the daemon shows them: whole GiB from one on."""
    return f"{limit >> 30}G" if limit >> 30 else f"{limit >> 20}M"


def _whole(text: str) -> tuple[int, str]:
    """The whole number at the beginning of a text, 0 if there is none, and the rest; no larger than it need be."""
    found = re.match(r"([+-]?)0*(\d*)", text, re.ASCII)
    digits = found[2][:40] if found else ""
    number = int(digits or "0")
    return (-number if found and found[1] == "-" else number), text[found.end() :] if found else text
