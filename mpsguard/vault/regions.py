"""The regions of the vault's sessions: made whole or not at all, handed out as copies, sealed, released."""

from collections.abc import Sequence

from mpsguard.vault import quota as quotas
from mpsguard.vault import transitions
from mpsguard.vault.counters import Tally
from mpsguard.vault.errors import QuotaError, UnknownRegionError, WrongGpuError
from mpsguard.vault.fd_storage.storage import region_name
from mpsguard.vault.quota import Usage
from mpsguard.vault.region import Layout, Region, SessionKey
from mpsguard.vault.session_fds import copies
from mpsguard.vault.session_store import SessionStore


class Reservation:
    """Room for a region whose descriptors are still to come. Whoever made it gives it back with `Regions.give_up`."""

    def __init__(self, key: SessionKey, token: int, region: Region) -> None:
        self.key = key
        self.token = token
        self.region = region


class Regions:
    """What can be done with regions; the stock owns their descriptors."""

    def __init__(self, stock: SessionStore, tally: Tally, gpus: frozenset[str] | None) -> None:
        """``gpus``: UUIDs that regions may lie on; None: any."""
        self._stock = stock
        self._tally = tally
        self._gpus = gpus

    def reserve(self, key: SessionKey, token: int, name: str, layout: Layout, metadata: bytes) -> Reservation:
        """See that a region would be taken if its descriptors came now, and keep the room for it. Raises VaultError."""
        session = self._stock.session(key)
        quotas.check_region(self._stock.quota, layout, metadata)
        if layout.gpu is not None and self._gpus is not None and layout.gpu not in self._gpus:
            raise WrongGpuError(f"{layout.gpu} is no GPU of this guard")
        transitions.check_new_region(session, token, name, layout)
        self._stock.reserve(key.uid, quotas.of_region(layout, metadata))
        return Reservation(key, token, Region(name, self._stock.new_id(), layout, session.generation, metadata))

    def give_up(self, reservation: Reservation) -> None:
        """Give the room back."""
        region = reservation.region
        self._stock.give_up(reservation.key.uid, quotas.of_region(region.layout, region.metadata))

    async def register(self, reservation: Reservation, fds: tuple[int, ...]) -> Region:
        """Make the region; ``fds``, one for each chunk, are the vault's from now on, whatever comes of it.

        The room is given back in any case: it is the region's own now, or nobody's.
        """
        region, key, token = reservation.region, reservation.key, reservation.token
        name = region_name(region.id)
        try:
            await self._stock.keeping.keep(name, fds)
            # Asked again: meanwhile its writer may have been fenced off.
            session = transitions.add_region(self._stock.session(key), token, region)
            self._stock.holdings[key].chunks[region.id] = fds
            self._stock.commit(session)
        except BaseException:
            holdings = self._stock.holdings.get(key)
            if holdings is not None:
                holdings.chunks.pop(region.id, None)
            self._stock.keeping.forget(name)
            self._stock.keeping.dispose(fds)
            raise
        finally:
            self.give_up(reservation)
        self._tally.made += 1
        return region

    def open(self, key: SessionKey, token: int, name: str, expected: Layout | None) -> tuple[Region, tuple[int, ...]]:
        """A region and copies of its descriptors, which are the caller's; it is held to be mapped from now on."""
        session = transitions.open_region(self._stock.session(key), token, name, expected)
        region = session.regions[name]
        try:
            fds = copies(self._stock.holdings[key].chunks[region.id])
        except OSError as error:
            raise QuotaError(f"{len(region.layout.sizes)} descriptors: {error.strerror}") from None
        try:
            self._stock.commit(session)
        except BaseException:
            self._stock.keeping.dispose(fds)
            raise
        self._tally.opened += 1
        return region, fds

    def close(self, key: SessionKey, token: int, name: str) -> None:
        """The holder of ``token`` does not map the region any more."""
        self._stock.commit(transitions.close_region(self._stock.session(key), token, name))

    def seal(self, key: SessionKey, token: int, name: str, chunks: Sequence[int] | None) -> Region:
        """Declare chunks final (None: all)."""
        session = transitions.seal(self._stock.session(key), token, name, chunks)
        self._stock.commit(session)
        return session.regions[name]

    def set_metadata(
        self, key: SessionKey, token: int, name: str, metadata: bytes, expected_version: int | None
    ) -> Region:
        """Replace a region's metadata."""
        quotas.check_metadata(self._stock.quota, metadata)
        before = self._stock.session(key)
        session = transitions.set_metadata(before, token, name, metadata, expected_version)
        more = Usage(metadata=max(0, len(metadata) - len(before.regions[name].metadata)))
        self._stock.reserve(key.uid, more)
        try:
            self._stock.commit(session)
        finally:
            self._stock.give_up(key.uid, more)
        return session.regions[name]

    def describe(self, key: SessionKey, name: str) -> Region:
        """A region as it is."""
        region = self._stock.session(key).regions.get(name)
        if region is None:
            raise UnknownRegionError(f"{key.name!r} has no region {name!r}")
        return region

    def release(self, key: SessionKey, token: int, name: str) -> None:
        """Take a region out, on its writer's behalf; LeaseHeldError while somebody else maps it."""
        self._stock.commit(transitions.release_region(self._stock.session(key), token, name))
        self._tally.released += 1
