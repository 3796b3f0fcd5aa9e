"""Messages of the command ``resize``."""

from typing import Annotated

import msgspec

from mpsguard.vault.wire.region import SessionKey

Share = Annotated[float, msgspec.Meta(gt=0, le=100)]


class Arguments(msgspec.Struct):
    """Which session, and what it is to have."""

    session: str
    share: Share
    """Percent of the SMs."""
    uid: int | None = None
    """Of the session; None if there is only one of that name."""


class Resized(msgspec.Struct, frozen=True):
    """A session has another share."""

    session: SessionKey
    share: float
    """Percent of the SMs."""
    before: float | None
    """Its share until then; None if it is not known, or there was none."""
    pid: int
    """The process that goes on."""
