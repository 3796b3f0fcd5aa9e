"""Interface of the descriptor storage, which keeps the vault's descriptors while no guard runs, in named bundles."""

import re
from typing import Final, Protocol

from mpsguard.linux.descriptors.fd_bundle import FdBundle

PREFIX: Final = "mgv-"
"""Prefix of every name; the service manager may store other descriptors for the guard too."""

_NAME: Final = re.compile(
    r"^mgv-(?:s(?P<session>\d{1,18})|f(?P<of>\d{1,18})-(?P<generation>\d{1,18})|r(?P<region>\d{1,18}))\Z"
)


class FdStorage(Protocol):
    """Keeps bundles beyond the guard's end, even if it crashes."""

    async def keep(self, name: str, bundle: FdBundle) -> None:
        """Take ownership of a bundle and return when it is safe; raise UnavailableError if it could not be stored."""
        ...

    async def forget(self, name: str) -> None:
        """Remove a bundle; unknown names are ignored."""
        ...

    async def lost(self) -> None:
        """Return if the storage has lost its content; it is then ready to be filled again."""
        ...

    async def close(self) -> None:
        """Disconnect from the storage, which keeps its content."""
        ...


def session_name(session: int) -> str:
    """Return the name of the bundle with a session's manifest."""
    return f"{PREFIX}s{session}"


def buffer_name(session: int, generation: int) -> str:
    """Return the name of the bundle with the state buffer of one generation."""
    return f"{PREFIX}f{session}-{generation}"


def region_name(region: int) -> str:
    """Return the name of the bundle with a region's chunks."""
    return f"{PREFIX}r{region}"


class BundleName:
    """A parsed bundle name: one of ``session``, ``buffer`` (session and generation) and ``region`` is set."""

    def __init__(self, name: str) -> None:
        """Parse a name; raise ValueError if it is not one of the vault's."""
        match = _NAME.match(name)
        if match is None:
            raise ValueError(f"{name!r} is not the name of a bundle of the vault")
        self.session = int(match["session"]) if match["session"] else None
        self.buffer = (int(match["of"]), int(match["generation"])) if match["of"] else None
        self.region = int(match["region"]) if match["region"] else None
