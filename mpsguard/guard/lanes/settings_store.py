"""The desired settings of a lane on disk, so that they outlive the guard as well as the control daemon."""

from contextlib import suppress
from pathlib import Path

import msgspec

from mpsguard.guard.lanes import settings
from mpsguard.guard.model import LaneSettings
from mpsguard.linux.files import file_replacement


class _Stored(msgspec.Struct, frozen=True):
    configured: LaneSettings
    """The configuration's settings at the time: another configuration takes over from what users had set since."""
    desired: LaneSettings


class SettingsStore:
    """Remembers one lane's desired settings in ``path``."""

    def __init__(self, path: Path, configured: LaneSettings) -> None:
        self._path = path
        self._configured = settings.named_first(configured)

    def load(self) -> LaneSettings:
        """What users set last, if the configuration has not changed since; else the configuration's settings."""
        try:
            stored = msgspec.json.decode(self._path.read_bytes(), type=_Stored)
        except (OSError, msgspec.DecodeError):
            return self._configured
        return stored.desired if stored.configured == self._configured else self._configured

    def forget(self) -> None:
        """Forget what users set, as far as the file can be removed."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def save(self, desired: LaneSettings) -> None:
        """Replace the file atomically; OSError if it cannot be written."""
        file_replacement.replace(self._path, msgspec.json.encode(_Stored(self._configured, desired)))
