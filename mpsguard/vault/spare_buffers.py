"""Records made and kept before they are needed, so that a takeover waits for nobody.

Under systemd a parcel is safe only after the service manager has said so, which may be busy just then. So as soon as a
standby is ready, the record of the generation that would come next is made, empty, and given to the keeper; when that
generation comes, what was carried over is written into it.
"""

import asyncio
from typing import NamedTuple

from mpsguard.vault import transitions
from mpsguard.vault.errors import UnavailableError
from mpsguard.vault.fd_storage.background import BackgroundStorage
from mpsguard.vault.fd_storage.storage import record_name
from mpsguard.vault.region import Session, SessionKey
from mpsguard.vault.session_fds import SessionFds
from mpsguard.vault.session_store import SessionStore


class _Spare(NamedTuple):
    generation: int
    kept: "asyncio.Future[int | None]"
    """How many keepers had been lost when this one had it; None if it has it not."""


class SpareBuffers:
    """Knows which of the records that `SessionFds` has are with the keeper already. All in one event loop."""

    def __init__(self, stock: SessionStore, keeping: BackgroundStorage) -> None:
        self._stock = stock
        self._keeping = keeping
        self._spares: dict[SessionKey, _Spare] = {}

    def adopt(self, key: SessionKey) -> None:
        """The keeper has one from the guard before, if `SessionFds` has one now."""
        generation = self._stock.holdings[key].spare_generation
        if generation is not None:
            kept: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
            kept.set_result(self._keeping.losses)
            self._spares[key] = _Spare(generation, kept)

    def want(self, key: SessionKey) -> None:
        """Begin to make one, if a standby is ready to write the session and there is none."""
        session = self._stock.sessions.get(key)
        if session is None or not transitions.ready_standbys(session):
            return
        holdings = self._stock.holdings[key]
        generation = session.generation + 1
        if holdings.spare_generation == generation:
            return
        try:
            fd = holdings.make_spare(session)
        except OSError:
            # Then the record is made when it is needed, or refused.
            return
        name = record_name(session.id, generation)
        self._spares[key] = _Spare(generation, self._keeping.spawn(self._keep(key, holdings, name, fd)))

    async def see_kept(self, session: Session, fd: int) -> None:
        """Return when the keeper has ``fd``, the record of the session's generation: at once if that is known.

        UnavailableError if it is not kept.
        """
        spare = self._spares.get(session.key)
        if spare is None or spare.generation != session.generation or not await self._is_kept(spare):
            await self._keeping.keep(record_name(session.id, session.generation), (fd,))

    def drop(self, key: SessionKey) -> None:
        """The session is no more."""
        self._spares.pop(key, None)

    async def _is_kept(self, spare: _Spare) -> bool:
        return await asyncio.shield(spare.kept) == self._keeping.losses

    async def _keep(self, key: SessionKey, holdings: SessionFds, name: str, fd: int) -> int | None:
        if not holdings.has(fd):
            # It was closed before this began, and its number may be somebody else's.
            return None
        try:
            await self._keeping.keep(name, (fd,))
        except UnavailableError:
            await self._keeping.unkeep(name)
            return None
        if self._stock.holdings.get(key) is not holdings:
            self._keeping.forget(name)
        return self._keeping.losses
