"""One client's connection, from `Hello` to its end. Trusts nothing that comes in, and closes every descriptor of it."""

import asyncio
import os
import socket
from typing import Final, NamedTuple

import msgspec

from mpsguard.linux import open_file, seqpacket
from mpsguard.linux.fd_closer import close_all
from mpsguard.linux.open_file import OpenFile
from mpsguard.linux.packet_stream import PacketStream
from mpsguard.linux.process import ProcessHandle
from mpsguard.linux.seqpacket import KERNEL_MAX_FDS
from mpsguard.linux.unread import UnreadFds
from mpsguard.model import Credentials
from mpsguard.vault import frame as frames
from mpsguard.vault import wire
from mpsguard.vault.errors import BadRequestError, QuotaError, TooLargeError, VaultError
from mpsguard.vault.frame import Flag, Frame
from mpsguard.vault.inspection import check_distinct, check_memory
from mpsguard.vault.region import Lease, Region, Role, SessionKey
from mpsguard.vault.turns import Turns
from mpsguard.vault.vault import Vault

GREETING_DEADLINE: Final = 10.0
"""Seconds for the first message of a connection."""
TRANSFER_DEADLINE: Final = 30.0
"""Seconds for the descriptors of one region, and for a client to take what is sent to it."""

_ROOM_RETRY: Final = 0.005
"""Seconds between two looks whether descriptors that were sent have been read: nothing can be polled for it."""


class _Received(NamedTuple):
    """A client's packet as its porter saw it; the descriptors are memory, and the receiver's."""

    frame: Frame
    fds: tuple[int, ...]


class _EndError(Exception):
    """The connection ends here; its peer has been told why, if it can be."""


class _PorterGoneError(Exception):
    """The porter has ended; the client may live, and comes back on another connection."""


class Conversation:
    """Serves one connection; owns nothing but what it has received and not yet passed on."""

    def __init__(
        self, sock: socket.socket, peer: Credentials, pidfd: int | None, vault: Vault, turns: Turns, *, simulated: bool
    ) -> None:
        """``sock``: to the porter, non-blocking, stays the caller's. ``pidfd``: the peer's, ours from now on."""
        self._socket = sock
        self._stream = PacketStream(sock)
        self._vault = vault
        self._turns = turns
        self._simulated = simulated
        self._unread = UnreadFds(sock)
        self._peer = peer
        self._pidfd = pidfd
        self._sending = asyncio.Lock()
        self._key = SessionKey(self._peer.uid, "")
        self._token = 0
        # One and the same object for as long as the connection lives.
        self._listener = self._notice

    async def run(self) -> None:
        """Serve until the peer leaves, or breaks the rules. Its lease ends with it, but not with our own end."""
        try:
            async with asyncio.timeout(GREETING_DEADLINE):
                await self._greet()
            while await self._request():
                pass
        except asyncio.CancelledError:
            # This guard ends, not the client: the lease stands for the next one.
            raise
        except _PorterGoneError:
            # Nor has the client: the lease stands for as long as its process does.
            return
        except (_EndError, OSError):
            # TimeoutError is one of these.
            self._detach()
        except BaseException:
            self._detach()
            raise
        else:
            self._detach()

    def close(self) -> None:
        """Give back what is ours; safe to call twice."""
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            os.close(pidfd)

    def _detach(self, *, in_order: bool = False) -> None:
        if self._token:
            self._vault.detach(self._key, self._token, self._listener, in_order=in_order)

    def _notice(self, notice: wire.Notice) -> bool:
        """Tell the client at once, or not at all: one that leaves that much unread learns it by its next request."""
        fds: tuple[int, ...] = ()
        try:
            if isinstance(notice, wire.Granted):
                fds = (self._vault.record_copy(self._key, self._token)[2],)
            if not self._unread.has_room(len(fds)):
                return False
            seqpacket.send(self._socket, frames.encode(Frame(Flag(0), 0, wire.encode(notice))), fds=fds)
            self._unread.sent(len(fds))
        except (OSError, VaultError):
            return False
        finally:
            close_all(fds)
        return True

    # --- the first message

    async def _greet(self) -> None:
        number = 0
        try:
            request = await self._receive()
            if request is None:
                raise _EndError
            number = request.id
            if not isinstance(request, wire.Hello):
                raise BadRequestError("the first message is `hello`")
            if request.v != wire.VERSION:
                raise BadRequestError(f"version {request.v} is not spoken here; {wire.VERSION} is")
            if request.role is Role.FENCED:
                raise BadRequestError("nobody asks to be fenced off")
            await self._attach(request)
        except VaultError as error:
            await self._fail(number, error)
            raise _EndError from None
        await self._send_record(number)

    async def _attach(self, request: wire.Hello) -> None:
        key = SessionKey(self._peer.uid if request.owner is None else request.owner, request.session)
        handle = self._hold()
        self._key = key
        if request.again or self._vault.knows(key, request.token):
            self._vault.reclaim(key, request.token, handle, self._listener)
        else:
            await self._vault.attach(
                key,
                Lease(request.token, handle.key, self._peer.uid, request.role),
                handle,
                self._listener,
                capacity=request.capacity,
                keep=request.keep,
                grants=request.grants,
            )
        self._token = request.token

    def _hold(self) -> ProcessHandle:
        pid = self._peer.pid
        try:
            pidfd, self._pidfd = self._pidfd, None
            return ProcessHandle.open(pid) if pidfd is None else ProcessHandle.from_pidfd(pidfd, pid)
        except ProcessLookupError:
            raise _EndError from None

    # --- what follows

    async def _request(self) -> bool:
        number = 0
        try:
            request = await self._receive()
            if request is None:
                return False
            number = request.id
            await self._serve(request)
        except VaultError as error:
            await self._fail(number, error)
        return True

    async def _serve(self, request: wire.Request) -> None:  # noqa: PLR0912 - a case for each message
        vault, regions = self._vault, self._vault.regions
        key, token = self._key, self._token
        match request:
            case wire.Create():
                await self._create(request)
            case wire.Open():
                await self._open(request)
            case wire.Seal():
                await self._done(request.id, regions.seal(key, token, request.name, request.chunks))
            case wire.SetMetadata():
                region = regions.set_metadata(key, token, request.name, request.metadata, request.expected_version)
                await self._done(request.id, region)
            case wire.Describe():
                await self._done(request.id, regions.describe(key, request.name))
            case wire.Close():
                regions.close(key, token, request.name)
                await self._done(request.id)
            case wire.Release():
                vault.release(key, token, request.name)
                await self._done(request.id)
            case wire.Names():
                names = sorted(name for name in vault.stock.session(key).regions if name > request.after)
                some = tuple(names[: wire.NAMES_AT_ONCE])
                await self._send(wire.NameList(request.id, some, more=len(names) > len(some)))
            case wire.Acquire():
                await vault.acquire(key, token)
                await self._send_record(request.id)
            case wire.Ready():
                await vault.ready(key, token)
                await self._done(request.id)
            case wire.Leave():
                self._detach(in_order=True)
                await self._done(request.id)
                raise _EndError
            case wire.GetRecord():
                await self._send_record(request.id)
            case wire.Hello():
                raise BadRequestError("attached already: one connection, one session")
            case wire.Chunks():
                raise BadRequestError("no region is being made")

    async def _create(self, request: wire.Create) -> None:
        reservation = self._vault.regions.reserve(
            self._key, self._token, request.name, request.layout, request.metadata
        )
        fds: list[int] = []
        ours = True
        try:
            await self._send(wire.Proceed(request.id), expected=len(request.layout.sizes))
            async with asyncio.timeout(TRANSFER_DEADLINE):
                files, trouble = await self._collect(len(request.layout.sizes), fds)
            if trouble is not None:
                raise trouble
            check_memory(request.layout, files, simulated=self._simulated)
            check_distinct(files, fds)
            ours = False
            region = await self._vault.regions.register(reservation, tuple(fds))
        except TimeoutError:
            await self._fail(request.id, BadRequestError(f"descriptors did not come within {TRANSFER_DEADLINE:g} s"))
            raise _EndError from None
        finally:
            if ours:
                self._vault.regions.give_up(reservation)
                self._vault.stock.keeping.dispose(fds)
        await self._done(request.id, region)

    async def _collect(self, count: int, fds: list[int]) -> tuple[list[OpenFile], VaultError | None]:
        """Take the announced number of descriptors, even if some are no good: the peer sends them all the same."""
        files: list[OpenFile] = []
        trouble: VaultError | None = None
        announced = 0
        while announced < count:
            packet = await self._packet()
            if packet is None:
                raise _EndError
            flags = packet.frame.flags
            fds += packet.fds
            files += [open_file.describe(fd) for fd in packet.fds]
            if flags & Flag.FOREIGN:
                trouble = trouble or BadRequestError("a descriptor that is no memory")
            if flags & Flag.GROWS:
                trouble = trouble or BadRequestError("memory that can grow: make it with MFD_ALLOW_SEALING")
            if flags & Flag.UNASKED:
                trouble = trouble or BadRequestError(f"more descriptors than {count} chunks")
            if flags & Flag.TRUNCATED:
                trouble = trouble or QuotaError("this guard has no room for so many descriptors")
            try:
                request = self._decoded(packet.frame)
            except VaultError:
                request = None
            if not isinstance(request, wire.Chunks):
                # How many descriptors are still on their way cannot be told any more.
                await self._fail(0, BadRequestError("the descriptors of a region were due"))
                raise _EndError
            announced += request.count
            if packet.frame.rights != request.count:
                trouble = trouble or BadRequestError(
                    f"{request.count} descriptors announced, {packet.frame.rights} came"
                )
        if announced > count:
            trouble = trouble or BadRequestError(f"{announced} descriptors for {count} chunks")
        return files, trouble

    async def _open(self, request: wire.Open) -> None:
        region, fds = self._vault.regions.open(self._key, self._token, request.name, request.expected)
        try:
            generation = self._vault.stock.session(self._key).generation
            async with self._sending, asyncio.timeout(TRANSFER_DEADLINE):
                await self._put(wire.Opened(request.id, region, generation), fds[:KERNEL_MAX_FDS])
                for start in range(KERNEL_MAX_FDS, len(fds), KERNEL_MAX_FDS):
                    await self._put(wire.MoreChunks(request.id), fds[start : start + KERNEL_MAX_FDS])
        finally:
            self._vault.stock.keeping.dispose(fds)

    # --- packets

    async def _receive(self) -> wire.Request | None:
        """The next message, which must come without descriptors; None at the end."""
        packet = await self._packet()
        if packet is None:
            return None
        if packet.frame.rights:
            self._vault.stock.keeping.dispose(packet.fds)
            await self._fail(0, BadRequestError(f"{packet.frame.rights} descriptors that nobody asked for"))
            raise _EndError
        return self._decoded(packet.frame)

    async def _packet(self) -> _Received | None:
        packet = await self._stream.receive(wire.MAX_PACKET + frames.HEADER_BYTES, max_fds=KERNEL_MAX_FDS)
        try:
            # With the packet, not before it: what came on all of a user's connections is to be served one by one.
            await self._turns.take(self._peer.uid)
        except asyncio.CancelledError:
            self._vault.stock.keeping.dispose(packet.fds)
            raise
        if packet.end:
            raise _PorterGoneError
        frame = frames.decode(packet.data)
        if frame.flags & Flag.END:
            return None
        if frame.flags & Flag.STRANGER:
            await self._fail(0, BadRequestError("a message from another process than the one that connected"))
            raise _EndError
        return _Received(frame, packet.fds)

    def _decoded(self, frame: Frame) -> wire.Request:
        """What a packet says; TooLargeError or BadRequestError. Packets stay apart: the next one may be sound."""
        try:
            return wire.decode_request(frame.data)
        except msgspec.DecodeError as error:
            whole = len(frame.data) < wire.MAX_PACKET or not frame.flags & Flag.TRUNCATED
            trouble: VaultError = BadRequestError(str(error)[:200])
            if not whole:
                trouble = TooLargeError(f"a message of more than {wire.MAX_PACKET} bytes")
            raise trouble from None

    async def _send_record(self, id: int) -> None:  # noqa: A002 - the wire's own word
        session, lease, fd = self._vault.record_copy(self._key, self._token)
        try:
            welcome = wire.Welcome(id, lease.token, lease.role, session.generation, session.capacity)
            await self._send(welcome, (fd,))
        finally:
            close_all((fd,))

    async def _done(self, id: int, region: Region | None = None) -> None:  # noqa: A002 - the wire's own word
        await self._send(wire.Done(id, region))

    async def _fail(self, id: int, error: VaultError) -> None:  # noqa: A002 - the wire's own word
        self._vault.tally.refused(error.code)
        await self._send(wire.Failure(id, error.code, str(error)))

    async def _send(self, message: wire.Answer | wire.Notice, fds: tuple[int, ...] = (), expected: int = 0) -> None:
        async with self._sending, asyncio.timeout(TRANSFER_DEADLINE):
            await self._put(message, fds, expected)

    async def _put(self, message: wire.Answer | wire.Notice, fds: tuple[int, ...], expected: int = 0) -> None:
        """Send one packet once there is room for it. ``expected``: descriptors that may come from now on."""
        while not self._unread.has_room(len(fds)):  # noqa: ASYNC110 - the kernel tells nobody when there is
            await asyncio.sleep(_ROOM_RETRY)
        flags = Flag.EXPECT if expected else Flag(0)
        await self._stream.send(frames.encode(Frame(flags, expected, wire.encode(message))), fds=fds)
        self._unread.sent(len(fds))
