"""The scenes of a pool: the start of a worker for a program, from its request to the connection to the worker.

What is in other processes is not cut here: the worker, and the template that forks it. That these end at any moment,
`tests/integration/pool` has.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from mpsguard.images.pool.conversation import PoolConversation
from mpsguard.images.pool.image_memory import key_of
from mpsguard.images.pool.messages import MAX_PACKET, ImageStarted, StartImage, decode_answer, encode
from mpsguard.images.pool.metrics import PoolMetrics
from mpsguard.images.pool.schedule import PoolPolicy
from mpsguard.images.pool.store_threads import StoreThreads
from mpsguard.images.pool.tier_owner import TierOwner
from mpsguard.images.pool.tiers import Tier
from mpsguard.images.pool.worker_pool import WorkerPool
from mpsguard.images.store.store import ImageStore
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.sockets import seqpacket
from mpsguard.linux.sockets.packet_stream import PacketStream
from mpsguard.linux.tasks import beside
from tests.harness.waiting import until
from tests.integration.transitions.interruption import Operation
from tests.integration.transitions.other_scenes import Place
from tests.unit.images.store.samples import commit

Scenery = AsyncGenerator[Operation, Exception | None]
Play = Callable[[Place], Scenery]
_WITHIN: Final = 20.0
_SAID: Final = b"served"


class Pool:
    """What a pool has, without its socket."""

    def __init__(self, root: Path, modules: tuple[str, ...]) -> None:
        self.owner = TierOwner({Tier.HOST: 4 << 20}, PoolMetrics())
        self.workers = WorkerPool(
            f"{__package__}.warm_worker:prepare",
            PoolPolicy(minimum=0, maximum=1),
            root / "sock",
            PoolMetrics(),
            modules,
        )
        self._looks = StoreThreads("look")
        self._store = root / "store"
        with ImageStore(self._store) as store:
            self._key = key_of(commit(store, "image", {"r": b"content"}))
        self.workers.open()

    async def converse(self, program: Callable[[socket.socket], Operation]) -> None:
        """Serve a program until it leaves."""
        theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            theirs.setblocking(False)
            ours.setblocking(False)
            seqpacket.let_descriptors_come(ours, allowed=False)
            conversation = PoolConversation(PacketStream(ours), self.owner, self._looks, self.workers)
            try:
                async with beside(program(theirs)):
                    await conversation.run()
            finally:
                close_all(conversation.give_back())

    async def ask(self, sock: socket.socket) -> bool:
        """Ask for a worker, and let go of it; return whether there was one. The socket's peer hears the end then."""
        asked = StartImage(str(self._store), "image", self._key, _WITHIN, _SAID)
        stream = PacketStream(sock.dup())
        try:
            await stream.send(encode(asked))
            packet = await stream.receive(MAX_PACKET, max_fds=1)
            if packet.end or packet.truncated or not isinstance(decode_answer(packet.data), ImageStarted):
                return False
            with socket.socket(fileno=packet.fds[0]) as worker:
                worker.setblocking(False)
                return await asyncio.get_running_loop().sock_recv(worker, 100) == _SAID
        finally:
            stream.close()
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    async def check(self) -> None:
        """Check that nothing is held any more, and that the next program gets a worker of its own."""
        got: list[bool] = []

        async def program(sock: socket.socket) -> None:
            got.append(await self.ask(sock))

        await self.converse(program)
        assert got == [True]
        await until(lambda: not self.workers.info())
        assert all(not image.uses for image in self.owner.listing().images)
        assert not self.workers._requests

    async def close(self) -> None:
        assert await self.workers.close() == ()
        assert await self.owner.close()
        self._looks.close(_WITHIN)


async def _starting(place: Place, modules: tuple[str, ...]) -> Scenery:
    pool = Pool(place.root, modules)
    yield pool.converse(pool.ask)
    await pool.check()
    await pool.close()


def starting_a_worker(place: Place) -> Scenery:
    return _starting(place, ())


def forking_a_worker(place: Place) -> Scenery:
    return _starting(place, ("json",))


PLAYS: list[Play] = [starting_a_worker, forking_a_worker]
