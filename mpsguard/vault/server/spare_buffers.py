"""State buffers created and stored in advance, so that a failover does not wait for the storage.

Under systemd, a bundle is safe only after the service manager has confirmed it, and the service manager may be busy at
that moment. So as soon as a standby is ready, an empty state buffer for the next generation is created and stored; when
that generation begins, the carried state is written into it.
"""

import asyncio
from typing import NamedTuple

from mpsguard.vault.server import transitions
from mpsguard.vault.server.fd_storage.background import BackgroundStorage
from mpsguard.vault.server.fd_storage.storage import buffer_name
from mpsguard.vault.server.session_fds import SessionFds
from mpsguard.vault.server.session_store import SessionStore
from mpsguard.vault.wire.errors import UnavailableError
from mpsguard.vault.wire.region import SessionKey, SessionRecord


class _Spare(NamedTuple):
    generation: int
    kept: "asyncio.Future[int | None]"
    """Value of `BackgroundStorage.losses` when it was stored; None if storing failed."""


class SpareBuffers:
    """Tracks which spare state buffers of `SessionFds` are in the storage. Used on one event loop only."""

    def __init__(self, store: SessionStore, storage: BackgroundStorage) -> None:
        self._store = store
        self._storage = storage
        self._spares: dict[SessionKey, _Spare] = {}

    def adopt(self, key: SessionKey) -> None:
        """Record the spare that the previous guard stored, if there is one."""
        generation = self._store.session_fds[key].spare_generation
        if generation is not None:
            kept: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
            kept.set_result(self._storage.losses)
            self._spares[key] = _Spare(generation, kept)

    def prepare(self, key: SessionKey) -> None:
        """Start to create a spare if a standby is ready and there is none."""
        session = self._store.sessions.get(key)
        if session is None or not transitions.ready_standbys(session):
            return
        session_fds = self._store.session_fds[key]
        generation = session.generation + 1
        if session_fds.spare_generation == generation:
            return
        try:
            fd = session_fds.make_spare(session)
        except OSError:
            # The state buffer is then created when it is needed.
            return
        name = buffer_name(session.id, generation)
        self._spares[key] = _Spare(generation, self._storage.spawn(self._keep(key, session_fds, name, fd)))

    async def ensure_kept(self, session: SessionRecord, fd: int) -> None:
        """Return when ``fd``, the state buffer of the session's generation, is stored.

        Raises:
            UnavailableError: it could not be stored.
        """
        spare = self._spares.get(session.key)
        if spare is None or spare.generation != session.generation or not await self._is_kept(spare):
            await self._storage.keep(buffer_name(session.id, session.generation), (fd,))

    def drop(self, key: SessionKey) -> None:
        """Forget the spare of a removed session."""
        self._spares.pop(key, None)

    async def _is_kept(self, spare: _Spare) -> bool:
        return await asyncio.shield(spare.kept) == self._storage.losses

    async def _keep(self, key: SessionKey, session_fds: SessionFds, name: str, fd: int) -> int | None:
        if not session_fds.has(fd):
            # It was closed before this task began, and its number may be in use for another file.
            return None
        try:
            await self._storage.keep(name, (fd,))
        except UnavailableError:
            await self._storage.forget_and_wait(name)
            return None
        if self._store.session_fds.get(key) is not session_fds:
            self._storage.forget(name)
        return self._storage.losses
