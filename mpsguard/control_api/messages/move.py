"""Messages of the command ``move``."""

import msgspec

from mpsguard.vault.region import SessionKey


class Arguments(msgspec.Struct):
    """Which domain; None: the only one."""

    domain: str | None = None


class Switchover(msgspec.Struct, frozen=True):
    """What came of the wish to leave a lane."""

    lane: str
    to: str | None
    """The lane on which the work goes on; None if nothing was moved."""
    moved: tuple[SessionKey, ...]
    left: tuple[SessionKey, ...]
    """Without a standby that was ready elsewhere, or that could not be promoted."""
    unsaved: str | None = None
    """Why it could not be saved that the lanes changed places: the next guard will bring new work to ``lane``."""
