"""What bounds the vault: quotas, and time."""

import pytest

from mpsguard import client
from mpsguard.vault.server.quota import Quota
from tests.harness.waiting import wait_for
from tests.integration.vault.running import ThreadedVault, close_chunks, memory

QUOTAS = [
    (Quota(regions_per_uid=1), client.QuotaError),
    (Quota(bytes_per_uid=8192), client.QuotaError),
    (Quota(chunks_per_uid=2), client.QuotaError),
    (Quota(chunks=2), client.QuotaError),
    (Quota(bundles=4), client.QuotaError),
    (Quota(chunks_per_region=1), client.TooLargeError),
    (Quota(metadata_bytes=1), client.TooLargeError),
    (Quota(metadata_per_uid=1), client.QuotaError),
]


@pytest.mark.parametrize(("quota", "error"), QUOTAS)
def test_quotas_hold_and_room_comes_back(quota: Quota, error: type[client.VaultError]) -> None:
    chunks = [memory(index) for index in range(3)]
    with ThreadedVault(quota) as vault, vault.session() as writer:
        writer.create("a", chunks[:1])
        with pytest.raises(error):
            writer.create("b", chunks[1:], metadata=b"22")
        writer.release("a")
        writer.create("b", chunks[1:2])
        vault.storage.empty()
    close_chunks(chunks)


def test_sessions_connections_and_states_are_bounded() -> None:
    quota = Quota(sessions_per_uid=2, connections_per_uid=3, state_bytes=100, leases_per_session=2)
    with ThreadedVault(quota) as vault:
        with pytest.raises(client.TooLargeError):
            vault.session(capacity=101)
        with vault.session("a", capacity=10) as one, vault.session("b", capacity=10):
            with pytest.raises(client.QuotaError):
                vault.session("c", capacity=10)
            with pytest.raises(client.TooLargeError):
                one.publish(b"x" * 11)
            wait_for("the place of the one that was refused", lambda: vault.vault.tally.connections == 2)
            with vault.standby("a"), pytest.raises(client.QuotaError):
                vault.standby("b")
        vault.storage.empty()


def test_a_session_goes_when_its_time_has_come() -> None:
    clock = [1000.0]
    with ThreadedVault(now=lambda: clock[0]) as vault:
        for keep in (0.0, 10.0, None):
            vault.session(f"keep-{keep}", keep=keep).close()

        def names() -> set[str]:
            return {key.name for key in vault.vault.store.sessions}

        wait_for("the end of the first", lambda: names() == {"keep-10.0", "keep-None"})
        clock[0] += 9.9
        vault.call(vault.vault.lifetimes.expire)
        assert "keep-10.0" in names()
        with vault.standby("keep-10.0"):
            clock[0] += 100
            vault.call(vault.vault.lifetimes.expire)
            assert "keep-10.0" in names()
        clock[0] += 10.1
        vault.call(vault.vault.lifetimes.expire)
        assert names() == {"keep-None"}
        vault.settle()
        assert len(vault.storage.bundles) == 1
        vault.storage.empty()
