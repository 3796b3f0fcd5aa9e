"""Why there is no snapshot."""

from enum import StrEnum
from typing import ClassVar


class FailureKind(StrEnum):
    """What a caller can tell apart."""

    FAILED = "failed"
    NOT_PRELOADED = "not preloaded"
    NO_ROOM = "no room"


class SnapshotError(Exception):
    """A snapshot could not be taken; the text is one line."""

    kind: ClassVar[FailureKind] = FailureKind.FAILED


class NotPreloadedError(SnapshotError):
    """The program does not run under the preload, or its preload serves no snapshots."""

    kind = FailureKind.NOT_PRELOADED


class SnapshotRoomError(SnapshotError):
    """The disk, or the user's quota of it, has no room for the snapshot."""

    kind = FailureKind.NO_ROOM
