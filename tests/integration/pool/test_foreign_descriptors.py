"""Descriptors with a last close(2) that takes as long as their sender decides: the pool is not held up by them."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mpsguard.images.pool.connection import PoolConnection
from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.image_memory import key_of
from mpsguard.images.pool.messages import FillImage, HoldImage, ListTiers, encode
from mpsguard.images.pool.schedule import Phase
from mpsguard.images.pool.tiers import Tier
from mpsguard.images.store.store import ImageStore
from tests.harness.waiting import wait_for
from tests.hostile.lingering import lingering
from tests.integration.pool.running import MIB, RunningPool, running
from tests.integration.pool.test_workers import warm

HOST_MEMORY = ("--host-memory", "16M", "--gpu-memory", "8M")
SOON = 10.0
"""Seconds; the sockets linger for an hour."""


@contextmanager
def lingers() -> Iterator[socket.socket]:
    """A socket to be given away."""
    ours, peer = lingering()
    try:
        yield ours
    finally:
        # The end of the peer, which has not read all, lets it be closed at once.
        peer.close()
        ours.close()


def give_away(raw: socket.socket, data: bytes, sent: socket.socket) -> None:
    """Send a socket along, and be no owner of it any more; unless the kernel refuses it."""
    try:
        socket.send_fds(raw, [data], [sent.fileno()])
    except (PermissionError, BrokenPipeError):
        return
    let_go(sent)


def let_go(sent: socket.socket) -> None:
    """Close a socket; on a thread, since the receiver may be faster, and then it is this close that lasts."""
    threading.Thread(target=sent.close, daemon=True).start()


def serves(pool: RunningPool) -> bool:
    """Whether another connection is answered soon."""
    with PoolConnection(pool.path, deadline=SOON) as mine:
        return bool(mine.listing().budgets)


def test_those_that_were_not_asked_for(tmp_path: Path) -> None:
    with running(tmp_path, *HOST_MEMORY) as pool, ExitStack() as held:
        first, second = held.enter_context(lingers()), held.enter_context(lingers())
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as raw:
            raw.connect(str(pool.path))
            give_away(raw, encode(ListTiers()), first)
            # It lies in the socket when the connection ends.
            give_away(raw, encode(ListTiers()), second)
        assert serves(pool)


def test_those_that_are_no_memory_where_memory_was_asked_for(tmp_path: Path) -> None:
    with running(tmp_path, *HOST_MEMORY) as pool, ExitStack() as held:
        pool.make("a", MIB)
        pool.make("b", 7 * MIB)
        store = held.enter_context(ImageStore(pool.store))
        a, b = (held.enter_context(store.open(name)) for name in "ab")
        first, second = held.enter_context(lingers()), held.enter_context(lingers())
        mine = held.enter_context(pool.connect())
        with pool.connect() as other:
            assert other.hold_on_gpu(store, a) is None
            with pytest.raises(PoolError, match="not one of memory"):
                other.fill(a, [first.fileno()])
            let_go(first)
        assert serves(pool)
        with pool.connect() as other:
            assert other.hold_on_gpu(store, a) is None
            give_away(other._channel._socket, encode(FillImage(key_of(a.manifest))), second)
        # Its room is free again, as that of memory is that another image drives out.
        assert mine.hold_on_gpu(store, b, within=SOON) is None
        assert serves(pool)


def test_those_that_lie_in_a_socket_when_the_pool_ends(tmp_path: Path) -> None:
    with ExitStack() as held:
        sent = held.enter_context(lingers())
        pool = held.enter_context(running(tmp_path, *HOST_MEMORY))
        manifest = pool.make("a", MIB)
        with ImageStore(pool.store) as store, store.open("a") as image:
            mine = held.enter_context(pool.connect())
            assert mine.hold_on_gpu(store, image) is None
        request = HoldImage(Tier.GPU, str(pool.store), "a", key_of(manifest), 600.0)
        mine._channel._socket.send(encode(request))
        wait_for("the request", lambda: [each.uses for each in pool.listed()] == [2])
        give_away(mine._channel._socket, encode(FillImage(request.key)), sent)
        assert pool.stop() == ""
        pool.start(*HOST_MEMORY)


def test_those_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warm(tmp_path, monkeypatch, prepare="prepare_and_lie") as pool:
        lies = pool.waiting()
        pool.dies("linger")
        wait_for("its descriptor", lambda: not list((tmp_path / "deaths").iterdir()))
        wait_for("another worker", lambda: [pid for pid, phase in pool.phases() if phase is Phase.WAITING] != [lies])
