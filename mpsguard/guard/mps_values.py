"""Values of the vendor's commands, read as its control daemon reads them, and as it shows them.

As measured on 535.261.03 and 550.163.01, which agree (tests/spellings.tsv): C's ``strtod`` for percentages, ``%d`` for
priorities, ``strtoull`` and at most a G for limits of memory. Of 580 and 595 little is known: 595.91.07 shows 1044M as
1G too (AssistOS-AI/ploinky, a test of its MPS program).
"""

import re
from typing import Final

_DOUBLE: Final = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<hex>0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?[0-9]+)?)"
    r"|(?P<decimal>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?))"
)
_INTEGER: Final = re.compile(r"(?P<sign>[+-]?)0*(?P<digits>[0-9]*)")
_DIGITS: Final = 40
"""Of a number, which is beyond what C keeps of one then."""
BLANKS: Final = " \t\n\v\f\r"
"""C's isspace: `str.split` takes more for blanks."""

_INT64_MAX: Final = (1 << 63) - 1
_UINT64: Final = (1 << 64) - 1
_GIB: Final = 1 << 30
_MIB: Final = 1 << 20

DEVICES: Final = 32
"""Devices that a control daemon has limits for, by ordinal (535, 550)."""

NO_DEVICE: Final = "GPU-00000000-0000-0000-0000-000000000000"
"""A UUID that no GPU has. A daemon without UUIDs takes each for the first device, and shows its limit for this one
too."""

_NAMED: Final = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,80}")

NO_LIMIT: Final = "0"
"""A limit of memory that is none: there is no other word for it."""


def command(line: str) -> tuple[str, str]:
    """Return the name of the command in a line, and what follows it."""
    text = line.lstrip(BLANKS)
    name = words(text)[0]
    return name, text[len(name) :]


def words(line: str) -> list[str]:
    """Return the words of a command."""
    return re.split(f"[{BLANKS}]+", line.strip(BLANKS))


def percentage(text: str) -> float | None:
    """Return the active thread percentage that the daemon takes for ``text``; None: it refuses it."""
    match = _DOUBLE.match(text)
    if match is None:
        return None
    try:
        value = float.fromhex(match["hex"]) if match["hex"] else float(match["decimal"])
    except OverflowError:
        return None
    return value if match["sign"] != "-" and 0.0 < value <= 100.0 else None


def priority(text: str) -> int | None:
    """Return the client priority that the daemon takes for ``text``, 0 for what is no number; None: it refuses it."""
    value = integer(text)
    return value if value in (0, 1) else None


def integer(text: str) -> int:
    """Return what C's ``%d`` takes for the number at the beginning of ``text``; 0 if there is none."""
    value = min(max(_whole(text.lstrip(BLANKS))[0], -_INT64_MAX - 1), _INT64_MAX)
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def behind_integer(text: str) -> str:
    """Return what follows the number at the beginning of ``text``; nothing if there is none, as C's scanf gives up."""
    match = re.match(rf"[{BLANKS}]*[+-]?[0-9]+", text)
    return text[match.end() :] if match is not None else ""


def is_named(device: str) -> bool:
    """Return whether a device is a UUID, which 535 and 550 do not know."""
    return _NAMED.fullmatch(device) is not None


def memory_limit(arguments: str) -> tuple[int, str] | None:
    """Return the device and the value that the daemon takes from a command that sets a limit of memory.

    It reads ``%d %s``: what follows the digits of the device is the value, also without a blank; where there are no
    digits, as in a UUID, it takes the limit of the first device away.

    Args:
        arguments: what follows the command's name, or the server's pid.

    Returns:
        None if there is no such device: nothing is set.
    """
    text = arguments.lstrip(BLANKS)
    match = re.match(r"[+-]?[0-9]+", text)
    if match is None:
        return 0, ""
    ordinal = integer(match[0])
    return (ordinal, words(text[match.end() :])[0]) if 0 <= ordinal < DEVICES else None


def limit_bytes(text: str) -> int:
    """Return the bytes of a limit of memory; 0: no limit. All but a G behind the digits counts as MiB."""
    number, rest = _whole(text)
    # strtoull: what is too large is the largest, and a sign makes the complement.
    number = _UINT64 if abs(number) > _UINT64 else number & _UINT64
    return (number << (30 if rest[:1] in ("G", "g") else 20)) & _UINT64


def limit_text(limit: int) -> str:
    """Return a limit of memory of whole MiB in words that no daemon reads in another way, nor a person."""
    if limit == 0:
        return NO_LIMIT
    return f"{limit // _GIB}G" if limit % _GIB == 0 else f"{limit // _MIB}M"


def percentage_text(value: float) -> str:
    """Return a percentage in words that are read as exactly this number again."""
    return repr(value).removesuffix(".0")


def shown_limit(limit: int) -> str:
    """Return how the daemon shows a limit of memory: from 1 GiB on in whole GiB, rounded down."""
    return f"{limit // _GIB}G" if limit >= _GIB else f"{limit // _MIB}M"


def _whole(text: str) -> tuple[int, str]:
    """Return the whole number at the beginning of a text, 0 without one, and the rest."""
    match = _INTEGER.match(text)
    assert match is not None
    number = int(match["digits"][:_DIGITS] or "0")
    return -number if match["sign"] == "-" else number, text[match.end() :]
