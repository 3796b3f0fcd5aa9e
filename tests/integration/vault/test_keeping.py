"""A keeper that refuses, and a writer that is fenced off while its region is being kept: nothing is half made."""

import pytest

from mpsguard import client
from mpsguard.linux.fd_parcel import Parcel
from mpsguard.vault.errors import UnavailableError
from tests.integration.vault.running import KeptHere, ThreadedVault, close_chunks, descriptors, memory


class Full(KeptHere):
    """Refuses the parcels whose names begin with one of ``refused``."""

    def __init__(self, *refused: str) -> None:
        super().__init__()
        self.refused = refused

    async def keep(self, name: str, parcel: Parcel) -> None:
        if name.startswith(self.refused or ("-",)):
            parcel.kept.close()
            parcel.receipt.close()
            raise UnavailableError(f"no room for {name}")
        await super().keep(name, parcel)


class Fencing(KeptHere):
    """While it takes a region, its writer is fenced off."""

    vault: ThreadedVault

    async def keep(self, name: str, parcel: Parcel) -> None:
        await super().keep(name, parcel)
        if name.startswith("mgv-r"):
            for key in list(self.vault.vault.stock.sessions):
                self.vault.vault.fence(key)


@pytest.mark.parametrize("name", ["mgv-s", "mgv-f"])
def test_a_session_that_cannot_be_kept_is_not_made(name: str) -> None:
    before = descriptors()
    keeper = Full(name)
    with ThreadedVault(keeper=keeper) as vault:
        with pytest.raises(client.UnavailableError):
            vault.session(keep=0.0)
        vault.settle()
        vault.call(vault.vault.expire)
        vault.settle()
        assert vault.vault.stock.sessions == {}
        assert keeper.parcels == {}
        keeper.refused = ()
        with vault.session(keep=0.0) as writer:
            writer.publish(b"works")
    keeper.empty()
    assert descriptors() == before


def test_a_region_that_cannot_be_kept_is_not_made_and_its_room_comes_back() -> None:
    before = descriptors()
    keeper = Full("mgv-r")
    chunks = [memory(n) for n in range(300)]
    with ThreadedVault(keeper=keeper) as vault, vault.session() as writer:
        held = descriptors()
        with pytest.raises(client.UnavailableError):
            writer.create("r", chunks)
        vault.settle()
        assert list(writer.names()) == []
        assert descriptors() <= held + 1
        keeper.refused = ()
        writer.create("r", chunks)
        assert vault.call(vault.vault.counters).regions == 1
    keeper.empty()
    close_chunks(chunks)
    assert descriptors() == before


def test_a_writer_fenced_off_while_its_region_is_kept_has_made_none() -> None:
    before = descriptors()
    keeper = Fencing()
    chunks = [memory(n) for n in range(300)]
    with ThreadedVault(keeper=keeper) as vault:
        keeper.vault = vault
        with vault.session() as writer, vault.standby() as standby:
            with pytest.raises(client.StaleGenerationError):
                writer.create("r", chunks)
            vault.settle()
            assert list(standby.names()) == []
            assert not any(name.startswith("mgv-r") for name in keeper.parcels)
            assert vault.call(lambda: vault.vault.stock._total.regions) == 0
    keeper.empty()
    close_chunks(chunks)
    assert descriptors() == before
