"""Messages of the command ``move``."""

import msgspec

from mpsguard.vault.wire.region import SessionKey


class Arguments(msgspec.Struct):
    """Which domain; None: the only one."""

    domain: str | None = None


class Switchover(msgspec.Struct, frozen=True):
    """The result of a failover or a planned switchover of one lane."""

    lane: str
    to: str | None
    """The lane that continues the work; None if no session was moved."""
    moved: tuple[SessionKey, ...]
    left: tuple[SessionKey, ...]
    """Sessions without a ready standby elsewhere, or with one that could not be promoted."""
    unsaved: str | None = None
    """Why the new active lane could not be saved: then the next guard will route new clients to ``lane``."""
