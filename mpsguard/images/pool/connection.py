"""A program's connection to its user's pool: images in shared memory."""

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

from mpsguard.images.pool.address import default_socket
from mpsguard.images.pool.arena_slots import Run
from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.image_memory import key_of
from mpsguard.images.pool.image_pages import ImagePages
from mpsguard.images.pool.messages import (
    LISTED,
    MAX_PACKET,
    MOST_PAYLOAD,
    MOST_SECONDS,
    Answer,
    ArenaOpened,
    FillImage,
    HoldImage,
    ImageHeld,
    ImageStarted,
    ListTiers,
    OpenArena,
    PoolListing,
    ReleaseImage,
    Request,
    RequestDone,
    RequestRefused,
    StartImage,
    decode_answer,
    encode,
)
from mpsguard.images.pool.tiers import Tier
from mpsguard.images.store.image import Image
from mpsguard.images.store.store import ImageStore
from mpsguard.linux.closing import Closing
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.sockets import seqpacket
from mpsguard.linux.sockets.request_channel import RequestChannel, connected

_MARGIN: Final = 1.0
"""Seconds an answer may take beyond the pool's own work on it."""

A = TypeVar("A", bound=Answer)


class SharedImage(ImagePages):
    """An image in the pool's host memory, held until it is closed."""

    def __init__(self, connection: "PoolConnection", fd: int, image: Image, key: str) -> None:
        super().__init__(fd, image.manifest)
        self._connection = connection
        self.key = key

    def close(self) -> None:
        """End the use of the image; safe to call twice. Its pages stay while something is mapped."""
        if self._fd >= 0:
            super().close()
            self._connection.release(Tier.HOST, self.key)


_TAKING_UP: Final = 120.0
"""Seconds for the pool to get memory for its arena, which it does once."""


class PoolConnection(Closing):
    """Owns a connection; not for several threads at once. All that it holds is released when it is closed."""

    def __init__(self, path: Path | None = None, *, deadline: float = 10.0) -> None:
        """Connect to a pool.

        Args:
            path: of its socket; None: `default_socket`.
            deadline: seconds for answers that need no loading.

        Raises:
            PoolError: there is none, or it is another user's.
        """
        self._path = path or default_socket()
        self._deadline = deadline
        try:
            sock = connected(str(self._path), time.monotonic() + deadline)
        except OSError as error:
            why = f"no pool at {self._path}: {error.strerror or error}"
            raise PoolError(f"{why}; `mpsguard pool` is one, MPSGUARD_POOL names its socket") from None
        self._channel = RequestChannel(sock, MAX_PACKET, decode_answer)
        if seqpacket.peer(sock).uid != os.geteuid():
            self.close()
            raise PoolError(f"{self._path}: the pool of another user")

    def hold(self, store: ImageStore, image: Image, *, within: float = 60.0) -> SharedImage:
        """Hold an image in host memory; it is loaded if it is not there.

        Args:
            store: of the image.
            image: stays owned by the caller.
            within: seconds that loading may take, 600 at most.

        Raises:
            PoolError: there is no room, the image is damaged, or time is over.
        """
        key = key_of(image.manifest)
        _, fds = self._hold(Tier.HOST, store, image, key, within)
        if len(fds) != 1:
            close_all(fds)
            raise PoolError(f"{self._path}: {len(fds)} descriptors for an image in host memory")
        return SharedImage(self, fds[0], image, key)

    def hold_pinned(self, store: ImageStore, image: Image, *, within: float = 60.0) -> tuple[Run, ...]:
        """Hold an image in the arena; it is loaded if it is not there. `release` it later.

        Returns:
            The arena's slots of 2 MiB that have its pieces, in their order.

        Raises:
            PoolError: there is no room, the image is damaged, or time is over.
        """
        held, fds = self._hold(Tier.PINNED, store, image, key_of(image.manifest), within)
        close_all(fds)
        return held.runs

    def open_arena(self) -> tuple[int, int]:
        """Return a descriptor of the arena, owned by the caller, and its size in bytes; raise PoolError."""
        opened, fds = self._ask(OpenArena(), ArenaOpened, more=_TAKING_UP)
        if len(fds) != 1:
            close_all(fds)
            raise PoolError(f"{self._path}: {len(fds)} descriptors for the arena")
        return fds[0], opened.size

    def start(
        self,
        store: ImageStore,
        image: Image,
        payload: bytes = b"",
        *,
        within: float = 60.0,
        in_host: bool = True,
    ) -> socket.socket:
        """Have a warm worker start an image; the worker ends when the connection does.

        Args:
            store: of the image.
            image: stays owned by the caller.
            payload: for the worker, 32768 bytes at most.
            within: seconds until it serves, 600 at most.
            in_host: whether the worker gets the image in the host tier; otherwise it holds it by itself, for instance
                in the pinned tier or on the GPU.

        Returns:
            A connection to the worker, a stream, owned by the caller; it does not depend on this object.

        Raises:
            PoolError: the worker says that it cannot, workers died over it, there is no room, or time is over.
        """
        if len(payload) > MOST_PAYLOAD:
            raise PoolError(f"{len(payload)} bytes for the worker; {MOST_PAYLOAD} is the most")
        _check(within)
        key = key_of(image.manifest)
        request = StartImage(str(store.directory.absolute()), image.name, key, within, payload, in_host)
        _, fds = self._ask(request, ImageStarted, more=within)
        if len(fds) != 1:
            close_all(fds)
            raise PoolError(f"{self._path}: {len(fds)} descriptors for a connection")
        return socket.socket(fileno=fds[0])

    def hold_on_gpu(self, store: ImageStore, image: Image, *, within: float = 60.0) -> tuple[int, ...] | None:
        """Hold an image in GPU memory; `release` it later.

        Returns:
            Descriptors as the process exported them that filled it, owned by the caller. None if this process has to:
            then call `fill`, or `release`.

        Raises:
            PoolError: there is no room, or the process that fills it has not done so within ``within`` seconds.
        """
        held, fds = self._hold(Tier.GPU, store, image, key_of(image.manifest), within)
        return None if held.to_fill else fds

    def fill(self, image: Image, fds: Sequence[int]) -> None:
        """Give the pool an image in GPU memory; the descriptors stay owned by the caller. Raise PoolError."""
        self._ask(FillImage(key_of(image.manifest)), RequestDone, tuple(fds))

    def release(self, tier: Tier, key: str) -> None:
        """End one use of an image; nothing is left to do if the connection is closed. Raise PoolError."""
        if self._channel.open:
            self._ask(ReleaseImage(tier, key), RequestDone)

    def check_open(self) -> None:
        """Raise PoolError if the connection has ended: then nothing that it held stays where it was."""
        if not self._channel.open:
            raise PoolError(f"{self._path}: the connection has ended")

    def listing(self) -> PoolListing:
        """Return what the tiers hold; raise PoolError."""
        found, _ = self._ask(ListTiers(), PoolListing)
        images = found.images
        while len(found.images) == LISTED:
            found, _ = self._ask(ListTiers(len(images)), PoolListing)
            images += found.images
        return PoolListing(images, found.budgets, found.workers)

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        self._channel.close()

    def _hold(
        self, tier: Tier, store: ImageStore, image: Image, key: str, within: float
    ) -> tuple[ImageHeld, tuple[int, ...]]:
        _check(within)
        request = HoldImage(tier, str(store.directory.absolute()), image.name, key, within)
        return self._ask(request, ImageHeld, more=within)

    def _ask(
        self, request: Request, wanted: type[A], fds: tuple[int, ...] = (), more: float = 0.0
    ) -> tuple[A, tuple[int, ...]]:
        """Return an answer, with its descriptors; after an error other than a refusal the connection is closed.

        Otherwise its answer would be that to the next request, and what it says is held would stay so.
        """
        try:
            data = encode(request)
        except UnicodeEncodeError:
            raise PoolError("a path that is not UTF-8 cannot be named to the pool") from None
        due = time.monotonic() + self._deadline + more + _MARGIN
        try:
            with self._channel.exchange(due) as exchange:
                exchange.send(data, fds)
                answer, came = exchange.receive()
                if not isinstance(answer, wanted | RequestRefused):
                    close_all(came)
                    raise PoolError(f"{self._path}: the pool answered another question")
        except PermissionError:
            # The kernel's answer to descriptors that the pool does not take.
            raise PoolError(f"{self._path}: this connection was not asked to fill the image") from None
        except OSError as error:
            raise PoolError(f"{self._path}: {error.strerror or error}") from None
        if isinstance(answer, RequestRefused):
            close_all(came)
            raise PoolError(answer.reason)
        return answer, came


def _check(within: float) -> None:
    if not 0 < within <= MOST_SECONDS:
        raise PoolError(f"within={within:g}: more than 0 and at most {MOST_SECONDS:g} seconds")
