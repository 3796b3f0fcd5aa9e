"""Requests that a program marks: counted by its writer, read by the guard, whatever either of them does."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from mpsguard import client
from mpsguard.client import Chunk, LeaseRole
from mpsguard.linux.descriptors import memfd
from mpsguard.vault.server.quota import Quota
from mpsguard.vault.wire.latency_counts import BOUNDS, HEADER, REGION, SIZE, LatencyCounts
from mpsguard.vault.wire.region import SessionKey
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import wait_for
from tests.integration.vault.running import REPOSITORY, LocalStorage, ThreadedVault


def read(vault: ThreadedVault, name: str = "s") -> LatencyCounts | None:
    key = SessionKey(os.getuid(), name)
    store = vault.vault.store
    return vault.call(lambda: store.session_fds[key].latency(store.session(key)))


def requests(vault: ThreadedVault) -> int:
    found = read(vault)
    assert found is not None
    return found.requests()


def test_marked_requests_are_read_by_the_guard(vault: ThreadedVault) -> None:
    with vault.session() as session:
        assert read(vault) is None
        assert list(session.names()) == []
        latency = session.latency()
        assert session.latency() is latency
        for milliseconds in range(1, 101):
            latency.record(milliseconds / 1e3)
        with latency.measured():
            pass
        with pytest.raises(KeyError), latency.measured():
            raise KeyError
        found = read(vault)
        assert found is not None
        assert found.requests() == 102
        assert found.total_seconds == pytest.approx(5.05, rel=0.01)
        assert found.percentile(0.5) == pytest.approx(0.049, rel=0.05)
        earlier = found
        latency.record(3.0)
        found = read(vault)
        assert found is not None
        assert found.percentile(0.99, since=earlier) == pytest.approx(3.0, rel=0.021)


@pytest.mark.parametrize("seconds", [-1e-9, float("nan"), float("-inf")])
def test_what_is_no_latency_is_refused(vault: ThreadedVault, seconds: float) -> None:
    with vault.session() as session:
        with pytest.raises(ValueError, match="no latency"):
            session.latency().record(seconds)
        session.latency().record(float("inf"))
        assert requests(vault) == 1


def test_threads_lose_no_count(vault: ThreadedVault) -> None:
    with vault.session() as session:
        latency = session.latency()

        def work() -> None:
            for _ in range(2000):
                latency.record(0.001)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert requests(vault) == 8000


@pytest.mark.parametrize("before", [True, False], ids=["counts first", "standby first"])
def test_after_a_takeover_the_new_writer_goes_on_with_the_counts(vault: ThreadedVault, before: bool) -> None:
    with vault.session() as writer:
        latency = writer.latency() if before else None
        with vault.standby() as standby:
            own = standby.latency()
            own.record(1.0)
            latency = latency or writer.latency()
            latency.record(1.0)
            assert requests(vault) == 1
            promoted = threading.Thread(target=standby.ready, args=(30.0,))
            promoted.start()
            key = SessionKey(os.getuid(), "s")
            wait_for("the standby to be ready", lambda: vault.call(lambda: _ready(vault, key)))
            vault.call(lambda: vault.vault.fence(key))
            # Fenced off, and not told yet: what it answers now is not the session's.
            latency.record(1.0)
            assert requests(vault) == 1
            token = vault.call(lambda: vault.vault.store.session(key).readers[0].token)
            assert vault.run(vault.vault.promote(key, token))
            promoted.join()
            own.record(1.0)
            assert requests(vault) == 2


def _ready(vault: ThreadedVault, key: SessionKey) -> bool:
    return any(lease.ready for lease in vault.vault.store.session(key).readers)


def test_the_counts_survive_the_guard() -> None:
    before = open_descriptors()
    storage = LocalStorage()
    with ThreadedVault(storage=storage) as vault, vault.session(keep=None) as session:
        session.latency().record(0.5)
        assert requests(vault) == 1
    with ThreadedVault(storage=storage) as vault, vault.session() as session:
        assert requests(vault) == 1
        session.latency().record(0.5)
        assert requests(vault) == 2
        session.release()
    storage.empty()
    assert opened_since(before) == []


def test_a_closed_session_counts_nothing_and_keeps_no_memory(vault: ThreadedVault) -> None:
    session = vault.session()
    latency = session.latency()
    latency.record(0.5)
    session.close()
    latency.record(0.5)
    with pytest.raises(client.StaleGenerationError):
        session.latency()
    assert requests(vault) == 1
    with vault.session(role=LeaseRole.READER) as reader, pytest.raises(client.NotPermittedError):
        reader.latency()


def test_the_counts_are_held_against_the_quota() -> None:
    with ThreadedVault(Quota(regions_per_uid=1)) as vault:
        with vault.session() as session:
            session.latency()
            with pytest.raises(client.QuotaError):
                session.create("r", _memory(4096, b""))
            session.release()
        vault.storage.empty()


def _memory(size: int, content: bytes, *, fixed: bool = True) -> tuple[Chunk, ...]:
    fd = memfd.create("made", size, fixed=fixed)
    os.pwrite(fd, content, 0)
    return (Chunk(fd, size),)


@pytest.fixture
def wild() -> Iterator[tuple[Chunk, ...]]:
    """Memory of a histogram's size with every bit set but the magic's."""
    chunks = _memory(SIZE, HEADER + b"\xff" * (SIZE - len(HEADER)))
    yield chunks
    os.close(chunks[0].fd)


def test_wild_counts_are_numbers_and_a_writer_counts_on(vault: ThreadedVault, wild: tuple[Chunk, ...]) -> None:
    with vault.session() as session:
        session.create(REGION, wild)
        found = read(vault)
        assert found is not None
        assert found.requests() == (len(BOUNDS) + 1) * (2**64 - 1)
        assert found.percentile(0.99) is not None
        session.latency().record(1.0)
        after = read(vault)
        assert after is not None
        assert after.counts.count(0) == 1
        assert after.requests(since=found) == 0


def test_another_region_of_that_name_is_no_histogram(vault: ThreadedVault) -> None:
    chunks = _memory(4096, HEADER)
    with vault.session() as session:
        session.create(REGION, chunks)
        os.close(chunks[0].fd)
        assert read(vault) is None
        with pytest.raises(client.LayoutMismatchError):
            session.latency()
        assert read(vault) is None


@pytest.mark.root
def test_memory_that_shrinks_under_the_reader_costs_only_the_counts(vault: ThreadedVault) -> None:
    """Root alone may give memory that can be cut off; a reader that has it mapped would get SIGBUS."""
    chunks = _memory(SIZE, HEADER, fixed=False)
    with vault.session() as session:
        session.create(REGION, chunks)
        assert requests(vault) == 0
        os.ftruncate(chunks[0].fd, 0)
        assert read(vault) is None
        os.close(chunks[0].fd)


WRITER = """
import sys
from mpsguard.client import Session
session = Session("s", socket=sys.argv[1])
latency = session.latency()
latency.record(0.001)
print("counting", flush=True)
while True:
    latency.record(0.001)
"""


def test_a_writer_killed_while_it_counts_leaves_whole_counts(vault: ThreadedVault) -> None:
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, vault.socket], cwd=REPOSITORY, stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"counting\n"
            before = requests(vault)
            wait_for("more counts", partial(_counts_beyond, vault, before + 100))
            writer.send_signal(signal.SIGKILL)
        found = read(vault)
        assert found is not None
        # The sum is stored after the count: it may lack the request of each writer that died.
        assert 0 <= found.requests() * 0.001 - found.total_seconds < 5.5 * 0.001
        wait_for("the end of its lease", lambda: _without_writer(vault))
        with vault.session() as session:
            session.latency().record(0.001)
        assert requests(vault) == found.requests() + 1


def _counts_beyond(vault: ThreadedVault, number: int) -> bool:
    return requests(vault) > number


def _without_writer(vault: ThreadedVault) -> bool:
    return vault.call(lambda: vault.vault.store.session(SessionKey(os.getuid(), "s")).writer is None)
