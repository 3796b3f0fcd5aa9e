"""A request that is refused after its image was counted as in use counts no more."""

import asyncio
import os
import socket
from pathlib import Path

from mpsguard.images.pool.conversation import PoolConversation
from mpsguard.images.pool.image_memory import key_of
from mpsguard.images.pool.messages import (
    MAX_PACKET,
    Answer,
    HoldImage,
    ImageHeld,
    RequestRefused,
    decode_answer,
    encode,
)
from mpsguard.images.pool.metrics import PoolMetrics
from mpsguard.images.pool.store_threads import StoreThreads
from mpsguard.images.pool.tier_owner import TierOwner
from mpsguard.images.pool.tiers import Tier
from mpsguard.images.store.store import ImageStore
from mpsguard.linux.sockets.packet_stream import PacketStream
from tests.unit.images.store.samples import commit


def test_an_image_with_a_descriptor_that_cannot_be_opened_again_is_not_held(tmp_path: Path) -> None:
    with ImageStore(tmp_path / "store") as store:
        key = key_of(commit(store, "a", {"r": b"content"}))
    request = HoldImage(Tier.HOST, str(tmp_path / "store"), "a", key, 30.0)

    async def serve() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        owner = TierOwner({Tier.HOST: 4 << 20}, PoolMetrics())
        with PacketStream(theirs) as program:
            conversation = PoolConversation(PacketStream(ours), owner, StoreThreads("look"), None)
            running = asyncio.create_task(conversation.run())

            async def asked() -> Answer:
                await program.send(encode(request))
                packet = await program.receive(MAX_PACKET)
                for fd in packet.fds:
                    os.close(fd)
                return decode_answer(packet.data)

            assert isinstance(await asked(), ImageHeld)
            # As when the process has no descriptor left.
            ((fd,),) = owner._fds.values()
            os.close(fd)
            assert isinstance(await asked(), RequestRefused)
            assert [image.uses for image in owner.listing().images] == [1]
            program.end_sending()
            await running
            conversation.give_back()
        assert [image.uses for image in owner.listing().images] == [0]
        owner._fds.clear()
        await owner.close()

    asyncio.run(asyncio.wait_for(serve(), 30))
