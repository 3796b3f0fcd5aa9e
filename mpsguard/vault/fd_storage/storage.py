"""Who keeps the vault's descriptors while no guard runs. They are given to it in parcels, each under a name."""

import re
from typing import Final, Protocol

from mpsguard.linux.fd_bundle import FdBundle

PREFIX: Final = "mgv-"
"""Of every name, so that parcels are told from whatever else the service manager keeps for the guard."""

_NAME: Final = re.compile(
    r"^mgv-(?:s(?P<session>\d{1,18})|f(?P<of>\d{1,18})-(?P<generation>\d{1,18})|r(?P<region>\d{1,18}))\Z"
)


class FdStorage(Protocol):
    """Keeps parcels through the end of the guard, however that comes."""

    async def keep(self, name: str, parcel: FdBundle) -> None:
        """Take a parcel over, and return when it is safe. UnavailableError if it is not kept."""
        ...

    async def forget(self, name: str) -> None:
        """Give up a parcel; unknown names do no harm."""
        ...

    async def lost(self) -> None:
        """Return if the keeper is gone with all it kept; it is ready to be given everything again."""
        ...

    async def close(self) -> None:
        """Let go of the keeper, which goes on keeping."""
        ...


def session_name(session: int) -> str:
    """Of the parcel with a session's ledger."""
    return f"{PREFIX}s{session}"


def record_name(session: int, generation: int) -> str:
    """Of the parcel with the record of one generation's forward state."""
    return f"{PREFIX}f{session}-{generation}"


def region_name(region: int) -> str:
    """Of the parcel with a region's chunks."""
    return f"{PREFIX}r{region}"


class ParcelName:
    """A name taken apart: one of ``session``, ``record`` (session and generation) and ``region`` is set."""

    def __init__(self, name: str) -> None:
        """ValueError if it is no name of the vault's."""
        match = _NAME.match(name)
        if match is None:
            raise ValueError(f"{name!r} is no parcel of a vault")
        self.session = int(match["session"]) if match["session"] else None
        self.record = (int(match["of"]), int(match["generation"])) if match["of"] else None
        self.region = int(match["region"]) if match["region"] else None
