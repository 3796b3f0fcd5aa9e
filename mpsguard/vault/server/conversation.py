"""One client's connection, from `Hello` to its end. All input is untrusted, and every received descriptor is closed."""

import asyncio
import os
import socket
from typing import Final, NamedTuple

import msgspec

from mpsguard.linux.descriptors import open_file
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.descriptors.open_file import OpenFile
from mpsguard.linux.descriptors.unread import UnreadFds
from mpsguard.linux.identity import Credentials
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.stat_reader import StatReader
from mpsguard.linux.sockets import seqpacket
from mpsguard.linux.sockets.packet_stream import PacketStream
from mpsguard.linux.sockets.seqpacket import KERNEL_MAX_FDS
from mpsguard.vault.server import frame as frames
from mpsguard.vault.server.frame import Flag, Frame
from mpsguard.vault.server.inspection import check_distinct, check_memory
from mpsguard.vault.server.turns import Turns
from mpsguard.vault.server.vault import Vault
from mpsguard.vault.wire import wire
from mpsguard.vault.wire.errors import BadRequestError, QuotaError, TooLargeError, VaultError
from mpsguard.vault.wire.region import Lease, LeaseRole, RegionRecord, SessionKey
from mpsguard.vault.wire.session_page import CheckpointRequest

GREETING_DEADLINE: Final = 10.0
"""Seconds for the first message of a connection."""
TRANSFER_DEADLINE: Final = 30.0
"""Seconds for the descriptors of one region, and for a client to read what is sent to it."""

_ROOM_RETRY: Final = 0.005
"""Seconds between two checks whether sent descriptors have been read: the kernel reports no event for it."""


class _Received(NamedTuple):
    """A client's packet as its porter saw it; its descriptors are memory, and owned by the receiver."""

    frame: Frame
    fds: tuple[int, ...]


class _EndError(Exception):
    """The connection ends here; its peer has been told the reason if possible."""


class _PorterGoneError(Exception):
    """The porter has ended; the client may be alive and can reconnect."""


class Conversation:
    """Serves one connection; owns only the descriptors that it has received and not yet passed on."""

    def __init__(
        self,
        sock: socket.socket,
        peer: Credentials,
        pidfd: int | None,
        vault: Vault,
        turns: Turns,
        *,
        stats: StatReader,
        simulated: bool,
    ) -> None:
        """Prepare to serve a connection.

        Args:
            sock: non-blocking socket to the porter; stays owned by the caller.
            peer: the client.
            pidfd: the client's, owned by this object from now on; None if the kernel has none.
            vault: the vault to serve.
            turns: shares the loop's time between users.
            stats: looks up processes.
            simulated: whether host memory may stand for GPU memory.
        """
        self._socket = sock
        self._stream = PacketStream(sock)
        self._vault = vault
        self._turns = turns
        self._stats = stats
        self._simulated = simulated
        self._unread = UnreadFds(sock)
        self._peer = peer
        self._pidfd = pidfd
        self._sending = asyncio.Lock()
        self._key = SessionKey(self._peer.user, "")
        self._token = 0
        # Stored once, because `Leases` compares it by identity and each access creates a new bound method.
        self._listener = self._notice

    async def run(self) -> None:
        """Serve until the peer leaves or violates the protocol.

        The lease ends with the connection, unless the guard or the porter ended it.
        """
        try:
            async with asyncio.timeout(GREETING_DEADLINE):
                await self._greet()
            while await self._request():
                pass
        except asyncio.CancelledError:
            # The guard ends, not the client: the lease remains valid for the next guard.
            raise
        except _PorterGoneError:
            # The porter ended, not the client: the lease remains valid while its process lives.
            return
        except (_EndError, OSError):
            # TimeoutError is one of these.
            pass
        except BaseException:
            self._detach()
            raise
        # In a turn, as a request: what there is to read of its state is for the user to decide.
        await self._turns.take(self._peer.user)
        self._detach()

    def close(self) -> None:
        """Close the pidfd; safe to call twice."""
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            os.close(pidfd)

    def _detach(self, *, in_order: bool = False) -> None:
        if self._token:
            self._vault.detach(self._key, self._token, self._listener, in_order=in_order)

    def _notice(self, notice: wire.Notice) -> bool:
        """Send a notice without waiting; return False if it could not be sent.

        A client that leaves too much unread learns of the change by its next request.
        """
        fds: tuple[int, ...] = ()
        try:
            if isinstance(notice, wire.Granted):
                fds = self._vault.store.state_copies(self._key, self._token)[2]
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
            if request.role is LeaseRole.FENCED:
                raise BadRequestError("the role `fenced` cannot be requested")
            await self._attach(request)
        except VaultError as error:
            await self._fail(number, error)
            raise _EndError from None
        await self._send_buffer(number)

    async def _attach(self, request: wire.Hello) -> None:
        key = SessionKey(self._owner(request.owner), request.session)
        handle = await self._hold()
        # Before the lease is granted: it is granted also if this connection is ended meanwhile, and ends with it.
        self._key, self._token = key, request.token
        if request.again or self._vault.knows(key, request.token):
            await self._vault.reclaim(key, request.token, handle, self._listener)
        else:
            await self._vault.attach(
                key,
                Lease(request.token, handle.key, self._peer.user, request.role),
                handle,
                self._listener,
                capacity=request.capacity,
                keep=request.keep,
                grants=request.grants,
            )

    def _owner(self, uid: int | None) -> int:
        """Return the user that a client names by ``uid``; None: itself, of which it knows no more than the uid."""
        return self._peer.user if uid in (None, self._peer.uid) else uid

    async def _hold(self) -> ProcessHandle:
        try:
            pidfd, self._pidfd = self._pidfd, None
            return await self._stats.hold(self._peer.pid, self._peer.user, pidfd)
        except ProcessLookupError:
            raise _EndError from None

    # --- further requests

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
                vault.lifetimes.release(key, token, request.name)
                await self._done(request.id)
            case wire.Names():
                names = sorted(name for name in vault.store.session(key).regions if name > request.after)
                some = tuple(names[: wire.NAMES_AT_ONCE])
                await self._send(wire.NameList(request.id, some, more=len(names) > len(some)))
            case wire.Acquire():
                await vault.acquire(key, token)
                await self._send_buffer(request.id)
            case wire.Ready():
                await vault.ready(key, token)
                await self._done(request.id)
            case wire.Leave():
                self._detach(in_order=True)
                await self._done(request.id)
                raise _EndError
            case wire.GetStateBuffer():
                await self._send_buffer(request.id)
            case wire.RequestCheckpoint():
                vault.store.request_checkpoint(key, CheckpointRequest(request.image, request.handover), token)
                await self._done(request.id)
            case wire.HasWriter():
                await self._send(wire.WriterPresence(request.id, vault.store.session(key).writer is not None))
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
                files, error_found = await self._collect(len(request.layout.sizes), fds)
            if error_found is not None:
                raise error_found
            check_memory(request.layout, files, simulated=self._simulated)
            check_distinct(files, fds)
            ours = False
            region = await self._vault.regions.register(reservation, tuple(fds))
        except TimeoutError:
            await self._fail(request.id, BadRequestError(f"descriptors did not come within {TRANSFER_DEADLINE:g} s"))
            raise _EndError from None
        finally:
            if ours:
                self._vault.regions.unreserve(reservation)
                self._vault.store.storage.dispose(fds)
        await self._done(request.id, region)

    async def _collect(self, count: int, fds: list[int]) -> tuple[list[OpenFile], VaultError | None]:
        """Receive the announced number of descriptors, also after an error: the peer sends them in any case."""
        files: list[OpenFile] = []
        error_found: VaultError | None = None
        announced = 0
        while announced < count:
            packet = await self._packet()
            if packet is None:
                raise _EndError
            flags = packet.frame.flags
            fds += packet.fds
            files += [open_file.describe(fd) for fd in packet.fds]
            if flags & Flag.FOREIGN:
                error_found = error_found or BadRequestError("a descriptor that is no memory")
            if flags & Flag.GROWS:
                error_found = error_found or BadRequestError("memory that can grow: seal it (F_SEAL_GROW) first")
            if flags & Flag.UNASKED:
                error_found = error_found or BadRequestError(f"more descriptors than {count} chunks")
            if flags & Flag.TRUNCATED:
                error_found = error_found or QuotaError("this guard has no room for so many descriptors")
            try:
                request = self._decoded(packet.frame)
            except VaultError:
                request = None
            if not isinstance(request, wire.Chunks):
                # The number of descriptors still to come is no longer known.
                await self._fail(0, BadRequestError("the descriptors of a region were due"))
                raise _EndError
            announced += request.count
            if packet.frame.rights != request.count:
                error_found = error_found or BadRequestError(
                    f"{request.count} descriptors announced, {packet.frame.rights} came"
                )
        if announced > count:
            error_found = error_found or BadRequestError(f"{announced} descriptors for {count} chunks")
        return files, error_found

    async def _open(self, request: wire.Open) -> None:
        region, fds = self._vault.regions.open(self._key, self._token, request.name, request.expected)
        try:
            generation = self._vault.store.session(self._key).generation
            async with self._sending, asyncio.timeout(TRANSFER_DEADLINE):
                await self._put(wire.Opened(request.id, region, generation), fds[:KERNEL_MAX_FDS])
                for start in range(KERNEL_MAX_FDS, len(fds), KERNEL_MAX_FDS):
                    await self._put(wire.MoreChunks(request.id), fds[start : start + KERNEL_MAX_FDS])
        finally:
            self._vault.store.storage.dispose(fds)

    # --- packets

    async def _receive(self) -> wire.Request | None:
        """Return the next message, which must have no descriptors; None at the end."""
        packet = await self._packet()
        if packet is None:
            return None
        if packet.frame.rights:
            self._vault.store.storage.dispose(packet.fds)
            await self._fail(0, BadRequestError(f"{packet.frame.rights} unexpected descriptors"))
            raise _EndError
        return self._decoded(packet.frame)

    async def _packet(self) -> _Received | None:
        packet = await self._stream.receive(wire.MAX_PACKET + frames.HEADER_BYTES, max_fds=KERNEL_MAX_FDS)
        try:
            # After the packet arrived, not before: packets of all of a user's connections are served one by one.
            await self._turns.take(self._peer.user)
        except asyncio.CancelledError:
            self._vault.store.storage.dispose(packet.fds)
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
        """Decode a request; raise TooLargeError or BadRequestError. The next packet may be valid again."""
        try:
            return wire.decode_request(frame.data)
        except msgspec.DecodeError as error:
            whole = len(frame.data) < wire.MAX_PACKET or not frame.flags & Flag.TRUNCATED
            error_found: VaultError = BadRequestError(str(error)[:200])
            if not whole:
                error_found = TooLargeError(f"a message of more than {wire.MAX_PACKET} bytes")
            raise error_found from None

    async def _send_buffer(self, id: int) -> None:  # noqa: A002 - the wire's own word
        session, lease, fds = self._vault.store.state_copies(self._key, self._token)
        try:
            welcome = wire.Welcome(id, lease.token, lease.role, session.generation, session.capacity)
            await self._send(welcome, fds)
        finally:
            close_all(fds)

    async def _done(self, id: int, region: RegionRecord | None = None) -> None:  # noqa: A002 - the wire's own word
        await self._send(wire.Done(id, region))

    async def _fail(self, id: int, error: VaultError) -> None:  # noqa: A002 - the wire's own word
        self._vault.tally.refused(error.code)
        await self._send(wire.Failure(id, error.code, str(error)))

    async def _send(self, message: wire.Answer | wire.Notice, fds: tuple[int, ...] = (), expected: int = 0) -> None:
        async with self._sending, asyncio.timeout(TRANSFER_DEADLINE):
            await self._put(message, fds, expected)

    async def _put(self, message: wire.Answer | wire.Notice, fds: tuple[int, ...], expected: int = 0) -> None:
        """Send one packet once there is room for it. ``expected``: descriptors that the client may send from now on."""
        while not self._unread.has_room(len(fds)):  # noqa: ASYNC110 - the kernel reports no event for it
            await asyncio.sleep(_ROOM_RETRY)
        flags = Flag.EXPECT if expected else Flag(0)
        await self._stream.send(frames.encode(Frame(flags, expected, wire.encode(message))), fds=fds)
        self._unread.sent(len(fds))
