"""What was told so far, on disk: a reporter that starts again goes on there."""

from pathlib import Path
from typing import Final

import msgspec

from mpsguard.guard.kubernetes.event_series import Series
from mpsguard.linux.files import file_replacement

LOOKS_BACK: Final = 600.0
"""Seconds before its first start that a reporter looks back, if no progress is saved."""
_MAX_FILE: Final = 4 << 20


class Progress(msgspec.Struct, frozen=True):
    """What was told so far. Times are UNIX seconds."""

    since: float
    """All incidents that ended before are done with."""
    done: tuple[str, ...] = ()
    """The ids of those that ended later and are done with; the last one told is the last one here."""
    series: dict[str, Series] = {}
    """Events that may be repeated, by the key of their notices."""


class ProgressFile:
    """The file with the progress."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self, now: float) -> tuple[Progress, str]:
        """Return the progress, and why it could not be read; "" if it was, or if there is none yet."""
        fresh = Progress(now - LOOKS_BACK)
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(_MAX_FILE), type=Progress), ""
        except FileNotFoundError:
            return fresh, ""
        except (OSError, msgspec.MsgspecError) as error:
            return fresh, f"{self._path}: {error}"

    def save(self, progress: Progress) -> None:
        """Put a progress in the place of the one before; OSError."""
        file_replacement.replace(self._path, msgspec.json.encode(progress))
