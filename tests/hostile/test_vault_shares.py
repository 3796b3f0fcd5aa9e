"""What one user takes of the vault is a share of it: others and root find room, whatever that user does."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard import client
from mpsguard.linux.descriptors.unread import UNREAD_FDS_MOST
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.vault.server.quota import Quota
from mpsguard.vault.server.turns import SHARE
from mpsguard.vault.wire import wire
from mpsguard.vault.wire.region import Lease, LeaseRole, RegionLayout, SessionKey
from tests.harness.waiting import wait_for
from tests.hostile import vault_attacks
from tests.hostile.vault_attacks import Stranger
from tests.hostile.vault_neighbours import Neighbourhood, attack
from tests.integration.vault.running import ThreadedVault, close_chunks, memory

pytestmark = [
    pytest.mark.slow(seconds=45, reason="attacks a real guard"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users"),
]


@pytest.fixture
def neighbourhood() -> Iterator[Neighbourhood]:
    with Neighbourhood().open() as opened:
        yield opened


def test_two_users_that_take_all_they_can_leave_room_for_others(neighbourhood: Neighbourhood) -> None:
    take = vault_attacks.take_all_there_is
    with attack(neighbourhood.path, take, 64001), attack(neighbourhood.path, take, 64002):
        with neighbourhood.good_client() as is_answered:
            is_answered(10)
        with attack(neighbourhood.path, take, 64003):
            pass


def test_subordinate_uids_are_users_of_their_own(neighbourhood: Neighbourhood) -> None:
    with attack(neighbourhood.path, vault_attacks.under_two_uids, 64001) as stranger:
        assert not neighbourhood.porters()
        # As newuidmap(1) does for a user with subordinate uids.
        Path(f"/proc/{stranger.pid}/uid_map").write_text("0 64001 2")
        stranger.send_signal(signal.SIGUSR1)
        wait_for("a porter for each uid", lambda: len(neighbourhood.porters()) == 2)
        (child,) = Path(f"/proc/{stranger.pid}/task/{stranger.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)


def test_host_memory_is_counted_and_cannot_grow_afterwards(neighbourhood: Neighbourhood) -> None:
    with attack(neighbourhood.path, vault_attacks.ask_for_host_memory):
        pass


def test_descriptors_that_are_not_read_are_few_and_then_the_connection_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpsguard.vault.server.conversation.TRANSFER_DEADLINE", 1.0)
    with ThreadedVault() as vault:
        chunks = [memory(index) for index in range(253)]
        with vault.session("full", keep=0.0) as session:
            session.create("r", chunks)
            close_chunks(chunks)
            sock = Stranger(vault.socket).connect()
            hello = wire.Hello(1, wire.VERSION, "full", LeaseRole.READER, token=77)
            assert Stranger.send(sock, hello)
            assert isinstance(Stranger.answer(sock), wire.Welcome)
            for number in range(40):
                Stranger.send(sock, wire.Open(number, "r"))
            wait_for("the end of the connection", lambda: vault.vault.tally.connections == 1)
            answered = 0
            while Stranger.answer(sock) is not None:
                answered += 253
            assert 0 < answered <= UNREAD_FDS_MOST
            sock.close()
        vault.settle()


def test_when_it_is_full_the_heaviest_users_idle_session_goes_first() -> None:
    """Sessions of one user without a lease make room for another user with less; never the other way."""
    quota = Quota(bundles=24)
    with ThreadedVault(quota) as vault:

        def make(uid: int, name: str, *, stay: bool) -> None:
            key, token = SessionKey(uid, name), uid * 1000 + int(name)
            handle = ProcessHandle.open(os.getpid())
            listener = _listener
            lease = Lease(token, handle.key, uid, LeaseRole.WRITER)
            vault.run(vault.vault.attach(key, lease, handle, listener, keep=None))
            if not stay:
                vault.call(lambda: vault.vault.detach(key, token, listener, in_order=True))

        def sessions(uid: int) -> set[str]:
            return vault.call(lambda: {key.name for key in vault.vault.store.sessions if key.uid == uid})

        # A quarter of the places are two sessions; of all but root's eighth there are seven.
        for uid in (1001, 1002, 1003):
            make(uid, "1", stay=False)
            make(uid, "2", stay=uid == 1001)
        with pytest.raises(client.QuotaError):
            make(1001, "3", stay=False)
        make(1004, "1", stay=True)
        assert sessions(1001) == {"1", "2"}
        # The place that goes is that of the longest idle session of a user with two.
        make(1005, "1", stay=True)
        gone = [uid for uid in (1001, 1002, 1003) if len(sessions(uid)) == 1]
        assert len(gone) == 1
        assert sessions(gone[0]) == {"2"}
        # Root's eighth is root's.
        make(0, "1", stay=True)
        vault.settle()
        vault.storage.empty()


def _listener(_: wire.Notice) -> bool:
    return True


def test_a_region_that_is_announced_counts_before_it_comes() -> None:
    with ThreadedVault(Quota(host_bytes_per_uid=3 << 20)) as vault, vault.session("s", keep=0.0) as session:
        chunk = memory(1)
        with pytest.raises(client.QuotaError):
            session.create("r", [client.Chunk(chunk.fd, 3 << 20)])
        session.create("r", [chunk])
        close_chunks([chunk])
        assert session.describe("r").layout == RegionLayout((4096,))


def test_a_request_on_a_full_session_costs_little(neighbourhood: Neighbourhood) -> None:
    """Counted in the bytes that the vault's process writes for it, which are what its loop encodes, too."""
    quota = Quota()
    most = quota.metadata_per_uid // quota.metadata_bytes
    with client.Session("full", socket=neighbourhood.path, keep=0.0) as session:
        chunk = memory(1)
        for number in range(most):
            copy = memory(number)
            session.create(f"r{number}", [copy], metadata=bytes(quota.metadata_bytes))
            close_chunks([copy])
        with pytest.raises(client.QuotaError):
            session.create("more", [chunk], metadata=b"x")
        for number in range(most, most + 100):
            copy = memory(number)
            session.create(f"r{number}", [copy])
            close_chunks([copy])
        with pytest.raises(client.QuotaError):
            session.set_metadata(f"r{most}", b"x")
        before, requests = written(neighbourhood), 20
        for number in range(requests):
            session.seal(f"r{number}")
        assert written(neighbourhood) - before <= requests * 2 * quota.metadata_per_uid
        close_chunks([chunk])


def written(neighbourhood: Neighbourhood, way: str = "wchar") -> int:
    """Bytes that the vault's own process has written so far; with ``rchar``, has read."""
    assert neighbourhood.vault.process is not None
    with open(f"/proc/{neighbourhood.vault.process.pid}/io", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{way}:"))


def test_a_spoilt_state_costs_two_states_to_read(neighbourhood: Neighbourhood) -> None:
    """Counted in the bytes that the vault's process reads; eight slots were read 64 times."""
    before = written(neighbourhood, "rchar")
    with attack(neighbourhood.path, vault_attacks.spoil_and_leave):
        assert written(neighbourhood, "rchar") - before <= 3 * vault_attacks.SPOILT


def test_the_end_of_a_lease_waits_for_its_holders_turn() -> None:
    with ThreadedVault() as vault:
        command = [sys.executable, "-c", "input()"]
        holders = {uid: subprocess.Popen(command, stdin=subprocess.PIPE) for uid in (1001, 1002)}
        for uid, holder in holders.items():
            handle = ProcessHandle.open(holder.pid)
            lease = Lease(uid, handle.key, uid, LeaseRole.WRITER)
            vault.run(vault.vault.attach(SessionKey(uid, "s"), lease, handle, _listener, keep=None))

        def has_lease(uid: int) -> bool:
            return vault.call(lambda: bool(vault.vault.store.session(SessionKey(uid, "s")).leases))

        # More than its share of a minute.
        vault.call(lambda: vault.vault.turns.spent(1001, 60.0 * SHARE))
        for uid in (1001, 1002):
            holders[uid].communicate(b"\n")
        wait_for("the end of the other user's lease", lambda: not has_lease(1002))
        assert has_lease(1001)
    with ThreadedVault(storage=vault.storage) as following:
        assert following.call(lambda: following.vault.store.session(SessionKey(1001, "s")).leases) == ()
        following.storage.empty()
