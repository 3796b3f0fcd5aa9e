"""The state buffer of the next generation is made and kept beforehand: a takeover does not wait for the storage."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mpsguard.client import Session
from mpsguard.linux.descriptors import fd_bundle
from mpsguard.linux.descriptors.fd_bundle import FdBundle
from mpsguard.vault.server.fd_storage.storage import buffer_name
from mpsguard.vault.wire.errors import UnavailableError
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import wait_for
from tests.integration.vault.running import LocalStorage, ThreadedVault
from tests.integration.vault.test_succession import Waiting, is_ready


class Moody(LocalStorage):
    """A storage that can be busy, so that no request is answered, or full."""

    def __init__(self) -> None:
        super().__init__()
        self.busy = False
        self.full = False
        self.asked: list[str] = []

    async def keep(self, name: str, bundle: FdBundle) -> None:
        self.asked.append(name)
        while self.busy:
            await asyncio.sleep(0.001)
        if self.full:
            bundle.kept.close()
            bundle.receipt.close()
            raise UnavailableError("full")
        await super().keep(name, bundle)

    async def forget(self, name: str) -> None:
        while self.busy:
            await asyncio.sleep(0.001)
        await super().forget(name)


@pytest.fixture
def storage() -> Iterator[Moody]:
    before = open_descriptors()
    made = Moody()
    yield made
    made.empty()
    assert opened_since(before) == []


@contextmanager
def with_standby(vault: ThreadedVault, writer: Session) -> Iterator[tuple[Session, Waiting]]:
    """A standby that waits for its turn; it is left as it is."""
    assert writer.publish(b"the last words") == 1
    with vault.standby() as standby:
        yield standby, Waiting(standby)


def spare(vault: ThreadedVault) -> str:
    """Return the name of the state buffer that the session will have next."""
    session = next(iter(vault.vault.store.sessions.values()))
    return buffer_name(session.id, session.generation + 1)


def kept(vault: ThreadedVault, storage: Moody) -> str:
    name = vault.call(lambda: spare(vault))
    wait_for("it is kept", lambda: name in storage.bundles)
    return name


def test_a_takeover_asks_the_storage_for_nothing(storage: Moody) -> None:
    with (
        ThreadedVault(storage=storage) as vault,
        vault.session() as writer,
        with_standby(vault, writer) as (candidate, wait),
    ):
        kept(vault, storage)
        storage.busy = True
        writer.close(in_order=False)
        assert wait.join()
        state = candidate.latest()
        assert state is not None
        assert (state.state, candidate.generation, candidate.publish(b"and on")) == (b"the last words", 2, 2)
        storage.busy = False


def test_each_takeover_has_one_if_a_standby_is_ready(storage: Moody) -> None:
    with (
        ThreadedVault(storage=storage) as vault,
        vault.session() as writer,
        with_standby(vault, writer) as (candidate, wait),
    ):
        kept(vault, storage)
        with vault.standby() as next_one:
            waiting = Waiting(next_one)
            wait_for("both are ready", lambda: vault.call(lambda: is_ready(vault, 2)))
            writer.close(in_order=False)
            assert wait.join()
            kept(vault, storage)
            storage.busy = True
            candidate.close(in_order=False)
            assert waiting.join()
            assert next_one.generation == 3
            storage.busy = False


def test_without_a_standby_there_is_none(storage: Moody) -> None:
    with ThreadedVault(storage=storage) as vault, vault.session(), vault.standby():
        vault.settle()
        assert vault.call(lambda: spare(vault)) not in storage.asked


def test_a_full_storage_costs_nothing_but_the_head_start(storage: Moody) -> None:
    with ThreadedVault(storage=storage) as vault, vault.session() as writer:
        storage.full = True
        with with_standby(vault, writer) as (candidate, wait):
            name = vault.call(lambda: spare(vault))
            wait_for("it was asked", lambda: name in storage.asked)
            vault.settle()
            storage.full = False
            writer.close(in_order=False)
            assert wait.join()
            assert candidate.publish(b"and on") == 2
            assert name in storage.bundles


def test_the_next_guard_has_it_too(storage: Moody) -> None:
    with (
        ThreadedVault(storage=storage) as vault,
        vault.session(keep=600) as writer,
        with_standby(vault, writer) as (candidate, wait),
    ):
        kept(vault, storage)
        # Still there when the next vault starts: as after SIGKILL, no process took leave.
        names = set(storage.bundles)
        with ThreadedVault(storage=storage) as after:
            assert set(storage.bundles) == names
            assert after.restored.unused == []
            storage.busy = True
            session = next(iter(after.vault.store.sessions.values()))
            token = next(lease.token for lease in session.readers if lease.ready)
            after.run(after.vault.promote(session.key, token))
            assert after.call(lambda: after.vault.state(session.key).state) == b"the last words"
            storage.busy = False
        writer.close(in_order=False)
        wait.join()
        candidate.close()


def test_one_that_was_not_filled_yet_is_filled_by_the_next_guard(storage: Moody) -> None:
    with (
        ThreadedVault(storage=storage) as vault,
        vault.session(keep=600) as writer,
        with_standby(vault, writer) as (candidate, wait),
    ):
        name = kept(vault, storage)
        key = vault.call(lambda: next(iter(vault.vault.store.sessions)))
        vault.call(lambda: vault.vault.fence(key))
        # As if the guard had been killed between the manifest's word and the record's.
        _, (fd,) = fd_bundle.unpack(storage.bundles[name].kept)
        os.pwrite(fd, bytes(os.fstat(fd).st_size), 0)
        os.close(fd)
        with ThreadedVault(storage=storage) as after:
            assert after.call(lambda: after.vault.state(key).state) == b"the last words"
            assert after.call(lambda: after.vault.store.session(key).generation) == 2
        (token,) = (lease.token for lease in vault.call(lambda: vault.vault.store.session(key)).readers if lease.ready)
        vault.run(vault.vault.promote(key, token))
        assert wait.join()
        assert candidate.generation == 2


def test_a_session_that_goes_meanwhile_leaves_none_behind(storage: Moody) -> None:
    with ThreadedVault(storage=storage) as vault, vault.session() as writer, with_standby(vault, writer) as (_, wait):
        kept(vault, storage)
        key = vault.call(lambda: next(iter(vault.vault.store.sessions)))
        storage.busy = True
        writer.close(in_order=False)
        assert wait.join()
        with vault.standby() as next_one:
            waiting = Waiting(next_one)
            wait_for("the next is being kept", lambda: buffer_name(1, 3) in storage.asked)
            vault.call(lambda: vault.vault.lifetimes.release_by_command(key, None, force=True))
            storage.busy = False
            vault.settle()
            assert storage.bundles == {}
            # Told, and so not waiting for ever.
            assert waiting.join() is None
