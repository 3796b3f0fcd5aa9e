"""Where a user's store of images is, and how large it may become, by the environment."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mpsguard.images.store.errors import ImageError

_SIZE: Final = re.compile(r"([1-9][0-9]{0,8})([MGT])\Z")
_SHIFTS: Final = {"M": 20, "G": 30, "T": 40}
DIRECTORY_VARIABLE: Final = "MPSGUARD_IMAGES"
QUOTA_VARIABLE: Final = "MPSGUARD_IMAGES_QUOTA"


def parse_size(text: str) -> int | None:
    """Return the bytes of a size such as "200G"; None if it is none."""
    found = _SIZE.match(text)
    return None if found is None else int(found[1]) << _SHIFTS[found[2]]


class LocationError(ImageError):
    """A variable of the environment that cannot be used."""


def default_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return ``MPSGUARD_IMAGES``, or ``mpsguard/images`` in ``XDG_DATA_HOME`` or ``~/.local/share``.

    Raises:
        LocationError: the variable is no absolute path, or there is no home directory.
    """
    if named := environment.get(DIRECTORY_VARIABLE):
        if not Path(named).is_absolute():
            raise LocationError(f"{DIRECTORY_VARIABLE}={named!r} is no absolute path")
        return Path(named)
    # The XDG rules: a path that is not absolute is as good as none.
    data = environment.get("XDG_DATA_HOME", "")
    if Path(data).is_absolute():
        return Path(data) / "mpsguard" / "images"
    try:
        return Path.home() / ".local" / "share" / "mpsguard" / "images"
    except RuntimeError:
        raise LocationError(f"there is no home directory; set {DIRECTORY_VARIABLE}") from None


def default_quota(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return ``MPSGUARD_IMAGES_QUOTA`` in bytes; None if it is not set.

    Raises:
        LocationError: it is no number with M, G or T.
    """
    text = environment.get(QUOTA_VARIABLE)
    if not text:
        return None
    found = parse_size(text)
    if found is None:
        raise LocationError(f'{QUOTA_VARIABLE}={text!r} is no whole number with M, G or T, such as "200G"')
    return found
