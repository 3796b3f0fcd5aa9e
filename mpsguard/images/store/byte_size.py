"""Sizes as a user writes them: a whole number with M, G or T."""

import re
from typing import Final

_SIZE: Final = re.compile(r"([1-9][0-9]{0,8})([MGT])\Z")
_SHIFTS: Final = {"M": 20, "G": 30, "T": 40}


def parse_size(text: str) -> int | None:
    """Return the bytes of a size such as "200G"; None if it is none."""
    found = _SIZE.match(text)
    return None if found is None else int(found[1]) << _SHIFTS[found[2]]
