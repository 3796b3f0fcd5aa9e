"""A session with the vault."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from mpsguard.linux.descriptors import memfd
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.vault.client.latency import Latency, new_chunks
from mpsguard.vault.client.lease import HeldLease, pause
from mpsguard.vault.client.region import Chunk, Region, RegionRequests, Writing
from mpsguard.vault.client.session_memory import SessionMemory
from mpsguard.vault.client.vault_connection import LostError, unexpected
from mpsguard.vault.wire import address, wire
from mpsguard.vault.wire.errors import (
    ExistsError,
    LeaseHeldError,
    NotPermittedError,
    StaleGenerationError,
    UnknownRegionError,
    VaultError,
)
from mpsguard.vault.wire.latency_counts import REGION
from mpsguard.vault.wire.region import Grant, LeaseRole, RegionLayout, check_name
from mpsguard.vault.wire.region import RegionRecord as Description

_COPIER_SEEN: Final = 1.0
"""Seconds for the vault to see that a copier which was killed has ended."""
_LOOK: Final = 0.005
"""Seconds between two attempts to release what that copier had."""


class Session(HeldLease, RegionRequests):
    """A lease on a named session, valid while this object is open (if the guard restarts, while the process lives).

    Safe for use by several threads; a forked child must open its own session. The guard may be restarted at any time:
    the lease remains valid, requests wait up to ``deadline`` seconds for the next guard, and `publish` and `state` keep
    working meanwhile.
    """

    def __init__(
        self,
        name: str,
        *,
        role: LeaseRole = LeaseRole.WRITER,
        socket: str | None = None,
        owner: int | None = None,
        capacity: int = 65536,
        keep: float | None = 300.0,
        grants: Sequence[Grant] = (),
        deadline: float = 10.0,
    ) -> None:
        """Attach to a session.

        Args:
            name: name of the session.
            role: what this process wants to be; a writer creates a missing session.
            socket: path of the vault's socket; None: MPSGUARD_VAULT, or in MPSGUARD_RUN_DIRECTORY, or the default.
            owner: uid of the session's owner; None: this process' own.
            capacity: of a new session: maximum size of the forward state in bytes.
            keep: of a new session: seconds that it is kept after its last lease has ended; None: until it is released.
            grants: of a new session: other users that may use it.
            deadline: seconds for each request.

        Raises:
            LeaseHeldError: there is a writer already.
            UnknownSessionError: there is no such session to read.
            NotPermittedError: the session is another user's.
            QuotaError: no room for a new session.
            BadRequestError: the name is none that a session may have.
            UnavailableError: there is no vault.
        """
        check_name("session", name)
        self._owner = owner
        self._latency: Latency | None = None
        self.memory = SessionMemory()
        """What this process has mapped of the session."""
        hello = wire.Hello(
            0,
            wire.VERSION,
            name,
            role,
            token=1 + secrets.randbelow((1 << 62) - 1),
            owner=owner,
            capacity=capacity,
            keep=keep,
            grants=tuple(grants),
        )
        super().__init__(socket or address.from_environment(os.environ), hello, deadline)

    # --- properties

    @property
    def owner(self) -> int:
        """Uid of the session's owner."""
        return os.getuid() if self._owner is None else self._owner

    # --- regions

    def create(
        self,
        name: str,
        chunks: Sequence[Chunk],
        *,
        va: int | None = None,
        gpu: str | None = None,
        metadata: bytes = b"",
    ) -> Region:
        """Give memory to the vault as a region, atomically.

        Args:
            name: name of the region in the session.
            chunks: in the order in which they are mapped; their descriptors stay owned by the caller. Memfds are sealed
                against growing, which MFD_ALLOW_SEALING allows; the vault refuses others of any user but root.
            va: address at which every process maps the first chunk; None: any address.
            gpu: UUID of the GPU that holds the memory; None for memfds.
            metadata: opaque to the vault.

        Raises:
            ExistsError: a region of that name exists.
            QuotaError: a quota is exhausted.
            TooLargeError: the metadata, or the number of chunks, exceed a limit.
            LayoutMismatchError: the addresses overlap another region's.
            WrongGpuError: the guard has no such GPU.
            BadRequestError: the descriptors are not such memory, or the name is none that a region may have.
            StaleGenerationError: this writer was fenced off.
        """
        check_name("region", name)
        layout = RegionLayout(tuple(chunk.size for chunk in chunks), va, gpu)
        fds = tuple(chunk.fd for chunk in chunks)
        for fd in fds:
            memfd.fix_size(fd)
        request = wire.Create(0, name, layout, metadata)
        try:
            description = self._described(request, fds)
        except ExistsError as error:
            description = self.describe(name)
            # After a retry, the existing region may be the one that the first attempt created.
            if not error.retried or (description.layout, description.metadata) != (layout, metadata):
                raise
        self.memory.changed(name, new=True)
        return Region(self, description, fds, owned=False)

    def open(self, name: str, *, sizes: Sequence[int] = (), va: int | None = None, gpu: str | None = None) -> Region:
        """Return a region with its descriptors; it cannot be released until it is closed.

        Args:
            name: name of the region.
            sizes: expected bytes of each chunk; empty: any.
            va: expected address; None: any.
            gpu: expected GPU; None: any.

        Raises:
            LayoutMismatchError: sizes or address differ.
            WrongGpuError: the GPU differs.
            UnknownRegionError: there is no such region.
            StaleGenerationError: this process was fenced off.
        """
        expected = RegionLayout(tuple(sizes), va, gpu)
        due = time.monotonic() + self._deadline
        with self._lock:
            losses = 0
            while True:
                answer, fds = self._request(wire.Open(0, name, expected))
                if not isinstance(answer, wire.Opened):
                    raise unexpected(answer, fds)
                try:
                    fds += self._alive().more_fds(answer.id, len(answer.region.layout.sizes) - len(fds))
                except LostError:
                    # The vault ended during the transfer: ask the next one for all descriptors.
                    close_all(fds)
                    pause(losses, due)
                    losses += 1
                except BaseException:
                    close_all(fds)
                    raise
                else:
                    return Region(self, answer.region, fds, owned=True)

    def open_or_create(
        self,
        name: str,
        make: Callable[[], Sequence[Chunk]],
        *,
        va: int | None = None,
        gpu: str | None = None,
        metadata: bytes = b"",
    ) -> Region:
        """Open a region; a writer creates it first if it does not exist.

        The same call serves the first start, a standby, a restart while the session is kept, and one after it has
        expired.

        Args:
            name: name of the region in the session.
            make: returns new chunks; called only if the region has to be created. Their descriptors are closed here.
            va: as for `create`; an existing region must have the same.
            gpu: as for `create`; an existing region must have the same.
            metadata: of a new region; an existing one keeps its own.

        Raises:
            UnknownRegionError: this process is a standby or reader, and there is no such region.
            VaultError: as `open` and `create`.
        """
        try:
            return self.open(name, va=va, gpu=gpu)
        except UnknownRegionError:
            if self._role is not LeaseRole.WRITER:
                raise
        chunks = make()
        try:
            self.create(name, chunks, va=va, gpu=gpu, metadata=metadata)
        finally:
            close_all([chunk.fd for chunk in chunks])
        return self.open(name, va=va, gpu=gpu)

    def describe(self, name: str) -> Description:
        """Return a region without its descriptors; raise UnknownRegionError."""
        return self._described(wire.Describe(0, name))

    def names(self) -> Iterator[str]:
        """Iterate over the names of all regions, in alphabetical order."""
        after, more = "", True
        while more:
            answer, fds = self._request(wire.Names(0, after))
            if not isinstance(answer, wire.NameList):
                raise unexpected(answer, fds)
            yield from answer.names
            more = answer.more and bool(answer.names)
            after = answer.names[-1] if answer.names else ""

    def seal(self, name: str, chunks: tuple[int, ...] | None = None) -> Description:
        """See `Region.seal`."""
        self.memory.changed(name)
        return self._described(wire.Seal(0, name, chunks))

    def set_metadata(self, name: str, metadata: bytes, expected_version: int | None = None) -> Description:
        """See `Region.set_metadata`."""
        self.memory.changed(name)
        try:
            return self._described(wire.SetMetadata(0, name, metadata, expected_version))
        except StaleGenerationError as error:
            description = self.describe(name)
            if error.retried and description.metadata == metadata:
                return description
            raise

    def release(self, name: str | None = None) -> None:
        """Remove a region from the vault; None: the whole session.

        Raises:
            LeaseHeldError: another process maps it (None: holds a lease on the session).
            UnknownRegionError: there is no such region.
            StaleGenerationError: this writer was fenced off.
            NotPermittedError: this process is not the writer.
        """
        due = time.monotonic()
        if self.memory.let_go(name):
            due += _COPIER_SEEN
        while True:
            try:
                self._request(wire.Release(0, name))
            except LeaseHeldError:
                if time.monotonic() >= due:
                    raise
                time.sleep(_LOOK)
            except UnknownRegionError as error:
                if not error.retried:
                    raise
                break
            else:
                break
        self.memory.released(name)

    def forget(self, name: str) -> None:
        """See `Region.close`."""
        with suppress(VaultError):
            self._request(wire.Close(0, name))

    # --- the forward state

    def publish(self, state: bytes) -> int:
        """Publish ``state`` as the session's newest and return its sequence number.

        From then on the state survives this process. Needs no guard, and costs a microsecond or two for some kilobytes
        (`scripts/vault-bench`).

        Raises:
            StaleGenerationError: this writer was fenced off: the state does not count, and the caller must not act as
                if it did.
            TooLargeError: the state exceeds the session's capacity.
            NotPermittedError: this process is not the writer.
        """
        forward = self._forward_state()
        if forward.publisher is None:
            raise NotPermittedError(f"a {self._role} cannot publish")
        try:
            sequence = forward.publisher.publish(state)
        except ValueError:
            forward.check_mapped()
            raise
        self.memory.published()
        return sequence

    # --- the requests of the program

    def latency(self) -> Latency:
        """Return what counts the latencies of this program's requests, for ``mpsguard-ctl vault show`` and objectives.

        The counts are a region of the session, made at the first call in a writer; they outlive the process as every
        region does.

        Raises:
            NotPermittedError: this process is a reader.
            QuotaError: no room for the region.
            LayoutMismatchError: the program has given another region the name of this one.
            StaleGenerationError: this process was fenced off, or the session is closed.
        """
        with self._lock:
            if self._role is LeaseRole.READER:
                raise NotPermittedError("a reader has no requests to count")
            if self._latency is None:
                self._latency = Latency(self._open_latency, self._is_writer)
            return self._latency

    def _open_latency(self) -> Region | None:
        try:
            return self.open_or_create(REGION, new_chunks)
        except UnknownRegionError:
            # A standby that began before the writer counted anything.
            return None

    # --- checkpoints

    def request_checkpoint(self, image: str, *, handover: bool = False) -> None:
        """Ask the session's writer for a checkpoint, which it takes when it publishes.

        ``handover``: it is to stand still behind the cut until another process takes over.

        Raises:
            NotPermittedError: this process may not become the session's writer.
            UnknownRegionError: the writer takes no checkpoints.
            UnavailableError: there is no writer.
        """
        self._request(wire.RequestCheckpoint(0, image, handover))

    def announce(self, name: str, whole: int, offset: int, size: int) -> Writing:
        """See `Region.writing`."""
        return self.memory.announce(name, whole, offset, size)

    # --- close

    def close(self, *, in_order: bool = True) -> None:
        """Give the lease back. What this process has mapped stays mapped until it unmaps it.

        If there is no guard at this moment, the lease remains until the process ends. With ``in_order`` False the
        session is left as if the process had died: a ready standby is promoted. A checkpoint that is under way is given
        up: wait for it before.
        """
        own = self._is_own
        if own:
            self.memory.stop()
        with self._lock:
            self._give_back(in_order=in_order)
            latency, self._latency = self._latency, None
        if latency is not None:
            latency.close()
        if own:
            # Behind the lease: another process may wait for that, and a copier with pinned memory takes long to end.
            self.memory.end_observer()
        self._close_page()
        self.memory.close()

    def hand_over(self) -> None:
        """Leave the session to the receiver of a migration, which is promoted; every further call says so."""
        self._closed = f"session {self.name!r} was handed over: the process that received it goes on with it"
        self.close(in_order=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failed = error.code not in (None, 0) if isinstance(error, SystemExit) else isinstance(error, Exception)
        self.close(in_order=not failed)

    # --- requests

    def _described(self, request: wire.Request, fds: Sequence[int] = ()) -> Description:
        answer, came = self._request(request, fds)
        if not isinstance(answer, wire.Done) or answer.region is None:
            raise unexpected(answer, came)
        return answer.region
