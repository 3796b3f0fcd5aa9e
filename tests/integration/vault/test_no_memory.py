"""A machine without memory for what the vault has to write down: it says so, loses nothing, and goes on later.

RLIMIT_FSIZE bounds memfds, too: with room for a record's header and nothing else, whatever is to be made or written
down fails as it does when there is no memory.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mpsguard import client
from mpsguard.client import LeaseRole
from mpsguard.vault.wire.region import Carried, SessionKey
from tests.harness.waiting import PATIENCE, wait_for
from tests.integration.vault.running import ThreadedVault

_HEADER = 64


@contextmanager
def no_memory() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_HEADER, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def only_key(vault: ThreadedVault) -> SessionKey:
    return next(iter(vault.vault.store.sessions))


def test_a_writer_is_fenced_off_and_its_state_is_there_when_there_is_memory_again(vault: ThreadedVault) -> None:
    with vault.session() as writer, vault.standby() as standby:
        writer.publish(b"the last words")
        key = only_key(vault)
        token = vault.call(lambda: vault.vault.store.session(key).readers[0].token)
        with no_memory():
            vault.call(lambda: vault.vault.fence(key))
            # The old state buffer has gone, and no other came: no code may give its number out, or close it again.
            assert vault.call(lambda: vault.vault.state(key)) == Carried(1, 1, b"the last words")
            with pytest.raises(client.QuotaError):
                vault.run(vault.vault.promote(key, token))
            with pytest.raises(client.QuotaError):
                vault.call(lambda: vault.vault.store.state_copies(key, token))
        with pytest.raises(client.StaleGenerationError):
            writer.publish(b"too late")
        assert vault.run(vault.vault.promote(key, token))
        assert standby.wait_for_promotion(PATIENCE)
        assert standby.latest() == (1, 1, b"the last words")
        assert standby.publish(b"and on") == 2


def test_two_generations_pass_without_memory_for_a_record(vault: ThreadedVault) -> None:
    with vault.session() as writer:
        writer.publish(b"the last words")
        key = only_key(vault)
        with no_memory():
            vault.call(lambda: vault.vault.fence(key))
            vault.call(lambda: vault.vault.store.session_fds[key].renew_buffer(vault.vault.store.session(key)))
            assert vault.call(lambda: vault.vault.store.session_fds[key].newest(vault.vault.store.session(key))).state
        with vault.session() as successor:
            assert successor.latest() == (1, 1, b"the last words")


def test_what_cannot_be_written_down_is_refused_and_succession_goes_on(vault: ThreadedVault) -> None:
    with vault.session() as writer, vault.standby() as standby:
        writer.publish(b"the last words")
        key = only_key(vault)
        with no_memory():
            writer.close(in_order=False)
            wait_for("it is an orphan", lambda: vault.call(lambda: vault.vault.store.session(key).orphaned))
            with pytest.raises(client.QuotaError):
                standby.ready(0)
        assert standby.ready(PATIENCE)
        assert (standby.role, standby.latest()) == (LeaseRole.WRITER, (1, 1, b"the last words"))
