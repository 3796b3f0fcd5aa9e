"""A storage that refuses, and a writer that is fenced off while its region is being kept: nothing is half made."""

import asyncio
import socket

import pytest

from mpsguard import client
from mpsguard.client import LeaseRole
from mpsguard.linux.descriptors.fd_bundle import FdBundle
from mpsguard.vault.wire import wire
from mpsguard.vault.wire.errors import UnavailableError
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import PATIENCE, wait_for
from tests.integration.vault.running import LocalStorage, ThreadedVault, close_chunks, close_fds, memory


class Full(LocalStorage):
    """Refuses the bundles with a name that begins with one of ``refused``."""

    def __init__(self, *refused: str) -> None:
        super().__init__()
        self.refused = refused

    async def keep(self, name: str, bundle: FdBundle) -> None:
        if name.startswith(self.refused or ("-",)):
            bundle.kept.close()
            bundle.receipt.close()
            raise UnavailableError(f"no room for {name}")
        await super().keep(name, bundle)


class Fencing(LocalStorage):
    """While it takes a region, its writer is fenced off."""

    vault: ThreadedVault

    async def keep(self, name: str, bundle: FdBundle) -> None:
        await super().keep(name, bundle)
        if name.startswith("mgv-r"):
            for key in list(self.vault.vault.store.sessions):
                self.vault.vault.fence(key)


class Slow(LocalStorage):
    """Takes no bundle with a name that begins with ``held`` before it is let."""

    def __init__(self, held: str) -> None:
        super().__init__()
        self.held = held
        self.waiting = 0
        self.let = asyncio.Event()

    async def keep(self, name: str, bundle: FdBundle) -> None:
        if name.startswith(self.held):
            self.waiting += 1
            await self.let.wait()
        await super().keep(name, bundle)


def greeting(vault: ThreadedVault, name: str, token: int) -> socket.socket:
    """A connection that has asked to write a session, and has not heard of it."""
    asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asking.settimeout(PATIENCE)
    asking.connect(vault.socket)
    asking.send(wire.encode(wire.Hello(1, wire.VERSION, name, LeaseRole.WRITER, token=token, keep=0.0)))
    return asking


def heard(asking: socket.socket) -> object:
    data, fds, _, _ = socket.recv_fds(asking, wire.MAX_PACKET, 4)
    close_fds(fds)
    return wire.decode_reply(data)


def test_two_sessions_under_way_cannot_have_one_token() -> None:
    before = open_descriptors()
    storage = Slow("mgv-s")
    with ThreadedVault(storage=storage) as vault:
        with greeting(vault, "a", 7) as first:
            wait_for("the first is under way", lambda: storage.waiting == 1)
            with greeting(vault, "b", 7) as second:
                wait_for("both have asked", lambda: storage.waiting == 2 or vault.vault.tally.refusals)
                vault.call(storage.let.set)
                assert isinstance(heard(first), wire.Welcome)
                refused = heard(second)
                assert isinstance(refused, wire.Failure)
                assert refused.code == client.Code.BAD_REQUEST
        wait_for("the session has gone", lambda: vault.call(lambda: not vault.vault.store.sessions))
        vault.settle()
    storage.empty()
    assert opened_since(before) == []


def test_a_writer_gets_its_state_buffer_when_the_manifest_says_so_on_a_second_connection_too() -> None:
    """Before, the next start would write into it, and could be made to wait."""
    before = open_descriptors()
    storage = Slow("mgv-f")
    with ThreadedVault(storage=storage) as vault:
        with greeting(vault, "s", 7) as first:
            wait_for("its state buffer is under way", lambda: storage.waiting == 1)
            key = next(iter(vault.vault.store.sessions))
            with pytest.raises(client.UnavailableError):
                vault.call(lambda: vault.vault.store.state_copies(key, 7))
            with greeting(vault, "s", 7) as second:
                wait_for("both are connected", lambda: vault.vault.tally.connections == 2)
                vault.call(storage.let.set)
                assert isinstance(heard(second), wire.Welcome)
                assert vault.call(lambda: vault.vault.store.session(key).carried) is None
                assert isinstance(heard(first), wire.Welcome)
        wait_for("the session has gone", lambda: vault.call(lambda: not vault.vault.store.sessions))
        vault.settle()
    storage.empty()
    assert opened_since(before) == []


def test_a_record_that_is_kept_too_late_is_not_taken_for_that_of_the_next_session_of_its_name() -> None:
    before = open_descriptors()
    storage = Slow("mgv-f1-")
    with ThreadedVault(storage=storage) as vault:
        with greeting(vault, "s", 7) as first:
            wait_for("its record is under way", lambda: storage.waiting == 1)
            key = next(iter(vault.vault.store.sessions))
            vault.call(lambda: vault.vault.lifetimes.release_by_command(key, None, force=True))
            second = "mgv-f2-1"
            storage.held = second
            late, storage.let = storage.let, asyncio.Event()
            with greeting(vault, "s", 8) as other:
                wait_for("the other one's, too", lambda: storage.waiting == 2)
                vault.call(late.set)
                while not isinstance(refused := heard(first), wire.Failure):
                    assert isinstance(refused, wire.Released)
                assert refused.code == client.Code.STALE_GENERATION
                # What the other one's state was before is written down until its own record is kept.
                assert vault.call(lambda: vault.vault.store.session(key).carried) is not None
                vault.call(storage.let.set)
                assert isinstance(heard(other), wire.Welcome)
                vault.settle()
                assert sorted(storage.bundles) == [second, "mgv-s2"]
        wait_for("the session has gone", lambda: vault.call(lambda: not vault.vault.store.sessions))
        vault.settle()
    storage.empty()
    assert opened_since(before) == []


@pytest.mark.parametrize("name", ["mgv-s", "mgv-f"])
def test_a_session_that_cannot_be_kept_is_not_made(name: str) -> None:
    before = open_descriptors()
    storage = Full(name)
    with ThreadedVault(storage=storage) as vault:
        with pytest.raises(client.UnavailableError):
            vault.session(keep=0.0)
        vault.settle()
        vault.call(vault.vault.lifetimes.expire)
        vault.settle()
        assert vault.vault.store.sessions == {}
        assert storage.bundles == {}
        storage.refused = ()
        with vault.session(keep=0.0) as writer:
            writer.publish(b"works")
    storage.empty()
    assert opened_since(before) == []


def test_a_region_that_cannot_be_kept_is_not_made_and_its_room_comes_back() -> None:
    before = open_descriptors()
    storage = Full("mgv-r")
    chunks = [memory(n) for n in range(300)]
    with ThreadedVault(storage=storage) as vault, vault.session() as writer:
        held = open_descriptors()
        with pytest.raises(client.UnavailableError):
            writer.create("r", chunks)
        vault.settle()
        assert list(writer.names()) == []
        assert len(opened_since(held)) <= 1
        storage.refused = ()
        writer.create("r", chunks)
        assert vault.call(vault.vault.counters).regions == 1
    storage.empty()
    close_chunks(chunks)
    assert opened_since(before) == []


def test_a_writer_fenced_off_while_its_region_is_kept_has_made_none() -> None:
    before = open_descriptors()
    storage = Fencing()
    chunks = [memory(n) for n in range(300)]
    with ThreadedVault(storage=storage) as vault:
        storage.vault = vault
        with vault.session() as writer, vault.standby() as standby:
            with pytest.raises(client.StaleGenerationError):
                writer.create("r", chunks)
            vault.settle()
            assert list(standby.names()) == []
            assert not any(name.startswith("mgv-r") for name in storage.bundles)
            assert vault.call(lambda: vault.vault.store._total.regions) == 0
    storage.empty()
    close_chunks(chunks)
    assert opened_since(before) == []
