"""The regions of the vault's sessions: created atomically, handed out as copies, sealed, released."""

from collections.abc import Sequence

from mpsguard.linux.descriptors.fd_copies import copies
from mpsguard.linux.tasks import finish
from mpsguard.vault.server import quota as quotas
from mpsguard.vault.server import transitions
from mpsguard.vault.server.counters import Tally
from mpsguard.vault.server.fd_storage.storage import region_name
from mpsguard.vault.server.quota import Usage
from mpsguard.vault.server.session_store import SessionStore
from mpsguard.vault.wire.errors import QuotaError, UnknownRegionError, WrongGpuError
from mpsguard.vault.wire.region import RegionLayout, RegionRecord, SessionKey


class Reservation:
    """Room for a region that waits for its descriptors. Its creator must pass it to `register` or `unreserve`."""

    def __init__(self, key: SessionKey, token: int, region: RegionRecord) -> None:
        self.key = key
        self.token = token
        self.region = region


class Regions:
    """Operations on regions; the session store owns their descriptors."""

    def __init__(self, store: SessionStore, tally: Tally, gpus: frozenset[str] | None) -> None:
        """Create the operations on ``store``.

        Args:
            store: owns the sessions.
            tally: counts what is done.
            gpus: UUIDs of the GPUs on which regions may lie; None: any.
        """
        self._store = store
        self._tally = tally
        self._gpus = gpus

    def reserve(self, key: SessionKey, token: int, name: str, layout: RegionLayout, metadata: bytes) -> Reservation:
        """Check that a region would be accepted now, and reserve room for it; raise VaultError if it would not."""
        session = self._store.session(key)
        quotas.check_region(self._store.quota, layout, metadata)
        if layout.gpu is not None and self._gpus is not None and layout.gpu not in self._gpus:
            raise WrongGpuError(f"{layout.gpu} is no GPU of this guard")
        transitions.check_new_region(session, token, name, layout)
        self._store.reserve(key.uid, quotas.of_region(layout, metadata))
        return Reservation(key, token, RegionRecord(name, self._store.new_id(), layout, session.generation, metadata))

    def unreserve(self, reservation: Reservation) -> None:
        """Release the reserved room."""
        region = reservation.region
        self._store.unreserve(reservation.key.uid, quotas.of_region(region.layout, region.metadata))

    async def register(self, reservation: Reservation, fds: tuple[int, ...]) -> RegionRecord:
        """Create the region and release its reservation.

        Args:
            reservation: from `reserve`.
            fds: one for each chunk; owned by the vault from now on, also on failure.

        Once it has begun it is not cut short: if the caller is cancelled, the region is there, or nothing of it.

        Raises:
            VaultError: the region was not created.
        """
        return await finish(self._register(reservation, fds))

    async def _register(self, reservation: Reservation, fds: tuple[int, ...]) -> RegionRecord:
        region, key, token = reservation.region, reservation.key, reservation.token
        name = region_name(region.id)
        try:
            await self._store.storage.keep(name, fds)
            # Read the session again: its writer may have been fenced off meanwhile.
            session = transitions.add_region(self._store.session(key), token, region)
            self._store.session_fds[key].chunks[region.id] = fds
            self._store.commit(session)
        except BaseException:
            session_fds = self._store.session_fds.get(key)
            if session_fds is not None:
                session_fds.chunks.pop(region.id, None)
            self._store.storage.forget(name)
            self._store.storage.dispose(fds)
            raise
        finally:
            self.unreserve(reservation)
        self._tally.made += 1
        return region

    def open(
        self, key: SessionKey, token: int, name: str, expected: RegionLayout | None
    ) -> tuple[RegionRecord, tuple[int, ...]]:
        """Return a region and copies of its descriptors, which the caller owns, and record that the client maps it."""
        session = transitions.open_region(self._store.session(key), token, name, expected)
        region = session.regions[name]
        try:
            fds = copies(self._store.session_fds[key].chunks[region.id])
        except OSError as error:
            raise QuotaError(f"{len(region.layout.sizes)} descriptors: {error.strerror}") from None
        try:
            self._store.commit(session)
        except BaseException:
            self._store.storage.dispose(fds)
            raise
        self._tally.opened += 1
        return region, fds

    def close(self, key: SessionKey, token: int, name: str) -> None:
        """Record that the holder of ``token`` no longer maps the region."""
        self._store.commit(transitions.close_region(self._store.session(key), token, name))

    def seal(self, key: SessionKey, token: int, name: str, chunks: Sequence[int] | None) -> RegionRecord:
        """Declare chunks final (None: all) and return the region."""
        session = transitions.seal(self._store.session(key), token, name, chunks)
        self._store.commit(session)
        return session.regions[name]

    def set_metadata(
        self, key: SessionKey, token: int, name: str, metadata: bytes, expected_version: int | None
    ) -> RegionRecord:
        """Replace a region's metadata and return the region."""
        quotas.check_metadata(self._store.quota, metadata)
        before = self._store.session(key)
        session = transitions.set_metadata(before, token, name, metadata, expected_version)
        more = Usage(metadata=max(0, len(metadata) - len(before.regions[name].metadata)))
        self._store.reserve(key.uid, more)
        try:
            self._store.commit(session)
        finally:
            self._store.unreserve(key.uid, more)
        return session.regions[name]

    def describe(self, key: SessionKey, name: str) -> RegionRecord:
        """Return the region; raise UnknownRegionError if there is none."""
        region = self._store.session(key).regions.get(name)
        if region is None:
            raise UnknownRegionError(f"{key.name!r} has no region {name!r}")
        return region

    def release(self, key: SessionKey, token: int, name: str) -> None:
        """Remove a region on its writer's behalf; raise LeaseHeldError while another process maps it."""
        self._store.commit(transitions.release_region(self._store.session(key), token, name))
        self._tally.released += 1
