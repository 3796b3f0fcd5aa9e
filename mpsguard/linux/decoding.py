"""Decoding of untrusted bytes, with one exception for all errors."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

T = TypeVar("T")


def decoded(decode: Callable[[bytes], T], data: bytes) -> T:
    """Return ``decode(data)``, for the method of a msgspec decoder.

    Raises:
        msgspec.DecodeError: for every error; msgspec itself raises UnicodeDecodeError for text that is not UTF-8, and
            RecursionError for data that is nested too deeply.
    """
    try:
        return decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
