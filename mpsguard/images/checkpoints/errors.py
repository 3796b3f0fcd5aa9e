"""The errors of checkpoints."""

from mpsguard.images.checkpoints.messages import CheckpointRefusal


class CheckpointError(Exception):
    """A checkpoint cannot be begun now; nothing was done."""


class CheckpointBusyError(CheckpointError):
    """Another checkpoint of this session is under way."""


class RestoreError(Exception):
    """A session cannot be filled from an image; nothing of the image is in it."""


class CheckpointRefusedError(Exception):
    """A checkpoint was begun and not committed; the image that had its name before is untouched."""

    def __init__(self, refusal: CheckpointRefusal, message: str) -> None:
        super().__init__(f"{refusal.value}: {message}")
        self.refusal = refusal
        """Why."""
