"""One connection of a program to its user's pool; all that it holds is released when it ends."""

import asyncio
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.image_memory import key_of, read_into, read_whole, size_of
from mpsguard.images.pool.messages import (
    LISTED,
    MAX_PACKET,
    Answer,
    ArenaOpened,
    FillImage,
    HoldImage,
    ImageHeld,
    ImageStarted,
    ListTiers,
    OpenArena,
    ReleaseImage,
    Request,
    RequestDone,
    RequestRefused,
    StartImage,
    decode_request,
    encode,
)
from mpsguard.images.pool.store_threads import StoreThreads
from mpsguard.images.pool.tier_owner import TierOwner
from mpsguard.images.pool.tiers import Tier
from mpsguard.images.pool.worker_messages import WorkerAssignment
from mpsguard.images.pool.worker_pool import WorkerPool
from mpsguard.images.store.errors import ImageError, os_errors
from mpsguard.images.store.store import ImageStore
from mpsguard.linux.descriptors import memfd
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.descriptors.open_file import MemoryKind, describe
from mpsguard.linux.sockets.packet_stream import PacketStream
from mpsguard.linux.sockets.seqpacket import KERNEL_MAX_FDS, Packet

_MOST_USES: Final = 4096


class PoolConversation:
    """Serves one connection."""

    def __init__(self, stream: PacketStream, owner: TierOwner, looks: StoreThreads, workers: WorkerPool | None) -> None:
        self._stream = stream
        self._owner = owner
        self._looks = looks
        self._workers = workers
        self._uses: Counter[tuple[Tier, str]] = Counter()
        self._to_fill: set[str] = set()
        self._unwanted: tuple[int, ...] = ()
        self._foreign = stream.takes_descriptors()
        """Whether descriptors that were not asked for may lie in the socket."""

    def give_back(self) -> tuple[int, ...]:
        """End the connection.

        Returns:
            Descriptors of the peer's kind, owned by the caller: to close them may take as long as the peer likes.
        """
        if self._foreign or self._unwanted:
            return *self._unwanted, self._stream.detach()
        self._stream.close()
        return ()

    async def run(self) -> None:
        """Answer requests until the peer leaves, or breaks the protocol."""
        try:
            while True:
                packet = await self._stream.receive(MAX_PACKET, max_fds=KERNEL_MAX_FDS)
                fds = list(packet.fds)
                try:
                    if packet.end or packet.truncated or not await self._serve(packet, fds) or fds:
                        return
                finally:
                    self._unwanted = tuple(fds)
        except OSError:
            return
        finally:
            self._release_all()

    async def _serve(self, packet: Packet, fds: list[int]) -> bool:
        """Answer a request; what it keeps of ``fds`` is taken out of them. Return False if it is invalid."""
        try:
            request = decode_request(packet.data)
        except msgspec.DecodeError:
            return False
        given: tuple[int, ...] = ()
        answer: Answer
        try:
            answer, given = await self._answer(request, fds)
        except (ImageError, PoolError) as error:
            answer = RequestRefused(str(error))
        try:
            await self._stream.send(encode(answer), fds=given)
        finally:
            # Descriptors of GPU memory stay the owner's.
            if not (isinstance(request, HoldImage) and request.tier is Tier.GPU):
                close_all(given)
        return True

    async def _answer(self, request: Request, fds: list[int]) -> tuple[Answer, tuple[int, ...]]:
        match request:
            case HoldImage() | StartImage():
                task = asyncio.current_task()
                assert task is not None
                try:
                    # What a program that has ended waited for is given up at once: its room, and a worker.
                    with self._stream.noticing_the_end(task.cancel):
                        async with asyncio.timeout(request.within):
                            return await (
                                self._hold(request) if isinstance(request, HoldImage) else self._start(request)
                            )
                except TimeoutError:
                    late = f"image {request.name}: not there within {request.within:g} s"
                    raise PoolError(late + self._lacks_worker(request)) from None
            case FillImage(key):
                if key not in self._to_fill or not fds:
                    raise PoolError("this connection was not asked to fill the image, or no descriptor came with it")
                if any(describe(fd).kind is MemoryKind.OTHER for fd in fds):
                    raise PoolError("a descriptor is not one of memory")
                self._filled(key)
                self._owner.fill(key, tuple(fds))
                fds.clear()
                return RequestDone(), ()
            case ReleaseImage(tier, key):
                self._release(tier, key)
                return RequestDone(), ()
            case OpenArena():
                return await self._arena()
            case ListTiers(start):
                workers = () if self._workers is None else self._workers.info()
                return replace(self._owner.listing(start, LISTED), workers=workers), ()

    async def _hold(self, request: HoldImage) -> tuple[Answer, tuple[int, ...]]:
        if self._uses.total() >= _MOST_USES:
            raise PoolError(f"a connection holds {_MOST_USES} images at most")
        size = await self._size(request)
        if request.tier is Tier.PINNED:
            runs = await self._owner.hold_pinned(
                request.key, size, request.store, lambda slots, stop: _load_into(request, slots, stop)
            )
            self._uses[request.tier, request.key] += 1
            return ImageHeld(runs), ()
        if request.tier is Tier.HOST:
            fd = await self._owner.hold_in_host(request.key, size, request.store, lambda stop: _load(request, stop))
            self._uses[request.tier, request.key] += 1
            try:
                return ImageHeld(), (memfd.read_only(fd),)
            except OSError as error:
                self._release(request.tier, request.key)
                raise PoolError(f"image {request.name}: {error.strerror}") from None
        found = await self._owner.hold_on_gpu(request.key, size)
        self._uses[request.tier, request.key] += 1
        if found is None:
            self._to_fill.add(request.key)
            self._foreign = True
            self._stream.let_descriptors_come(allowed=True)
            return ImageHeld(to_fill=True), ()
        return ImageHeld(), found

    async def _size(self, request: HoldImage | StartImage) -> int:
        # The key is the content's: what a tier has is that, also if another image has come in its place on the disk.
        known = self._owner.size_of(request.key)
        return known if known is not None else await self._looks.run(request.store, lambda: _size(request))

    async def _arena(self) -> tuple[Answer, tuple[int, ...]]:
        arena = await self._owner.open_arena()
        if arena is None:
            raise PoolError("this pool pins no memory: mpsguard pool --pinned-memory SIZE")
        try:
            return ArenaOpened(arena.size), (arena.descriptor(),)
        except OSError as error:
            raise PoolError(f"pinned memory: {error.strerror}") from None

    async def _start(self, request: StartImage) -> tuple[Answer, tuple[int, ...]]:
        if self._workers is None:
            raise PoolError("this pool has no workers: mpsguard pool --prepare MODULE:FUNCTION")
        key = request.key
        assignment = WorkerAssignment(request.store, request.name, key, request.payload)
        if not request.in_host:
            connection = await self._workers.start(assignment, None, lambda: None)
            return ImageStarted(), (connection.detach(),)
        size = await self._size(request)
        fd = await self._owner.hold_in_host(key, size, request.store, lambda stop: _load(request, stop))
        # From here on the use is the worker's, and ends with it.
        connection = await self._workers.start(assignment, fd, lambda: self._owner.release(Tier.HOST, key))
        return ImageStarted(), (connection.detach(),)

    def _lacks_worker(self, request: HoldImage | StartImage) -> str:
        """Return a suffix for the error of a late request: that of a start with its image in memory lacks a worker."""
        if isinstance(request, HoldImage):
            return ""
        here = (
            each.key == request.key and each.tier is Tier.HOST and each.whole for each in self._owner.listing().images
        )
        if request.in_host and not any(here):
            return ""
        return ": no worker was free; if none can prepare itself, the pool's own messages say why"

    def _release(self, tier: Tier, key: str) -> None:
        if not self._uses[tier, key]:
            raise PoolError("this connection does not hold the image")
        self._uses[tier, key] -= 1
        if tier is Tier.GPU and key in self._to_fill:
            self._filled(key)
            self._owner.abandon(key)
        else:
            self._owner.release(tier, key)

    def _filled(self, key: str) -> None:
        self._to_fill.discard(key)
        if not self._to_fill:
            self._stream.let_descriptors_come(allowed=False)

    def _release_all(self) -> None:
        for (tier, key), uses in list(self._uses.items()):
            for _ in range(uses):
                self._release(tier, key)


def _size(request: HoldImage | StartImage) -> int:
    """Return the bytes that the image takes up; ImageError, or PoolError if it is another one."""
    with _store(request) as store, store.open(request.name) as image:
        if key_of(image.manifest) != request.key:
            raise PoolError(f"image {request.name}: another one has come in its place")
        return size_of(image.manifest)


def _load(request: HoldImage | StartImage, stop: threading.Event) -> int:
    with _store(request) as store, store.open(request.name) as image:
        if key_of(image.manifest) != request.key:
            raise PoolError(f"image {request.name}: another one has come in its place")
        return read_whole(image, stop)


def _load_into(request: HoldImage, slots: list[memoryview], stop: threading.Event) -> None:
    with _store(request) as store, store.open(request.name) as image:
        if key_of(image.manifest) != request.key:
            raise PoolError(f"image {request.name}: another one has come in its place")
        read_into(image, slots, stop)


def _store(request: HoldImage | StartImage) -> ImageStore:
    directory = Path(os.fsdecode(request.store))
    with os_errors(str(directory)):
        is_there = directory.is_dir()
    if not is_there:
        raise PoolError(f"there is no store of images at {directory}")
    return ImageStore(directory)
