"""Decoding of bytes that strangers write, with one exception for all that can be wrong with them."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

T = TypeVar("T")


def decoded(decode: Callable[[bytes], T], data: bytes) -> T:
    """Return what ``decode``, of a msgspec decoder, makes of ``data``.

    Raises:
        msgspec.DecodeError: for everything; msgspec itself raises UnicodeDecodeError for a text that is not UTF-8, and
            RecursionError for what is nested too deep.
    """
    try:
        return decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
