# long: one lease, one lock: the requests, the connection they come back over, and the forward state
"""A session with the vault."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from math import inf
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from msgspec.structs import replace

from mpsguard.client.forward_state import ForwardState, UnmappedError
from mpsguard.client.kept_connections import tell_ready
from mpsguard.client.latency import Latency, new_chunks
from mpsguard.client.region import Chunk, Region, RegionRequests, Writing
from mpsguard.client.vault_connection import Answered, Connection, LostError, unexpected
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.pacing import backoff
from mpsguard.vault import address, wire
from mpsguard.vault.errors import (
    BadRequestError,
    ExistsError,
    LeaseHeldError,
    NotPermittedError,
    StaleGenerationError,
    UnavailableError,
    UnknownRegionError,
    UnknownSessionError,
    VaultError,
)
from mpsguard.vault.latency_counts import REGION
from mpsguard.vault.region import Grant, LeaseRole, RegionLayout, check_name
from mpsguard.vault.region import RegionRecord as Description
from mpsguard.vault.state_buffer import State

if TYPE_CHECKING:
    from mpsguard.client.checkpoints.checkpoint import Checkpoint
    from mpsguard.client.checkpoints.checkpoints import Checkpoints
    from mpsguard.client.checkpoints.writing_session import MappedMemory
    from mpsguard.client.mapped_ahead import MappedAhead

_COPIER_SEEN: Final = 1.0
"""Seconds for the vault to see that a copier which was killed has ended."""
_LOOK: Final = 0.005
_LONGEST_PAUSE: Final = 0.25
"""Seconds between two attempts to ask a vault that ends each connection."""
_CLOSING_DEADLINE: Final = 1.0
"""Seconds to wait for a restarting guard when only the lease is to be given back."""


class Session(RegionRequests):
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
        self.name = name
        self._path = socket or address.from_environment(os.environ)
        self._deadline = deadline
        self._owner = owner
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._role = role
        self._released = False
        self._closed = f"session {name!r} is closed"
        """What a call on the closed session says."""
        self._again = False
        self._forward: ForwardState | None = None
        self._latency: Latency | None = None
        self._checkpoints: Checkpoints | None = None
        self.mapped: dict[str, MappedMemory] = {}
        """The regions that this process has mapped by `mpsguard.client.mapped` or `mpsguard.client.cuda`, by name."""
        self._ahead: dict[str, MappedAhead] = {}
        self._connection: Connection | None = None
        self._hello = wire.Hello(
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
        self._connect()

    # --- properties

    @property
    def role(self) -> LeaseRole:
        """The last known role of this process: a writer may be fenced off, a standby promoted."""
        return self._role

    @property
    def generation(self) -> int:
        """Generation of the state buffer that this process publishes in or reads."""
        return self._forward_state().generation

    @property
    def capacity(self) -> int:
        """Maximum size of the forward state in bytes."""
        return self._capacity

    @property
    def owner(self) -> int:
        """Uid of the session's owner."""
        return os.getuid() if self._owner is None else self._owner

    @property
    def socket(self) -> str:
        """Path of the vault's socket."""
        return self._path

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
            chunks: in the order in which they are mapped; their descriptors stay owned by the caller.
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
        request = wire.Create(0, name, layout, metadata)
        try:
            description = self._described(request, fds)
        except ExistsError as error:
            description = self.describe(name)
            # After a retry, the existing region may be the one that the first attempt created.
            if not error.retried or (description.layout, description.metadata) != (layout, metadata):
                raise
        self._regions_changed(name, new=True)
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
                    _pause(losses, due)
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
        self._regions_changed(name)
        return self._described(wire.Seal(0, name, chunks))

    def set_metadata(self, name: str, metadata: bytes, expected_version: int | None = None) -> Description:
        """See `Region.set_metadata`."""
        self._regions_changed(name)
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
        checkpoints = self._checkpoints
        due = time.monotonic()
        if checkpoints is not None:
            # Its copier has what is to be released.
            if checkpoints.let_go():
                due += _COPIER_SEEN
            checkpoints.regions_changed(name)
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
        for each in list(self._ahead) if name is None else [name]:
            # A later region of that name is another one, also if it has the same size and address.
            if (ahead := self.take_ahead(each)) is not None:
                ahead.undo.close()
        if checkpoints is not None and name is not None:
            checkpoints.released(name)

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
        if self._checkpoints is not None:
            self._checkpoints.at_publish()
        return sequence

    def state(self) -> bytes | None:
        """Return the newest published state, of any process; None if there is none. See `latest`."""
        found = self.latest()
        return None if found is None else found.state

    def latest(self) -> State | None:
        """Return the newest state with sequence number and generation. Needs a guard only after a change of writers."""
        while True:
            forward = self._forward_state()
            with suppress(UnmappedError):
                state = forward.latest()
                # Check after reading: only a state read before the end of its generation is the one carried over.
                if not forward.is_over():
                    return state
            with self._lock:
                if self._forward is forward:
                    self._on_welcome(self._request(wire.GetStateBuffer(0)))

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

    def _is_writer(self) -> bool:
        """Return whether this process is the writer, and was not fenced off; asks no guard."""
        forward = self._forward
        if self._role is not LeaseRole.WRITER or forward is None:
            return False
        try:
            return not forward.is_over()
        except UnmappedError:
            return False

    # --- checkpoints

    def checkpoints(
        self,
        *,
        store: str | os.PathLike[str] | None = None,
        quota: int | None = None,
        spare: int = 0,
        buffers: int = 1 << 30,
        patience: float = 1.0,
        deadline: float = 600.0,
        retries: int = 2,
    ) -> Checkpoints:
        """Return what takes this session's checkpoints; the arguments count at the first call.

        Needs the extra ``images``. A writer that has called it can also be asked for checkpoints by
        ``mpsguard-ctl vault checkpoint``, and takes them when it publishes.

        Args:
            store: directory of the image store; None: `mpsguard.images.location.default_directory`.
            quota: bytes that the store may take up; None: `mpsguard.images.location.default_quota`.
            spare: bytes of memory, of the kind that the regions are, to set pieces aside that are about to be written.
            buffers: bytes of host memory in which pieces wait for the disk; pinned, if a region lies on a GPU.
            patience: seconds that a checkpoint may hold the program in all; then it is given up.
            deadline: seconds from the cut to the commit; then the checkpoint is given up.
            retries: how often a checkpoint that an unannounced write tore is taken again.

        Raises:
            NotPermittedError: this process is a reader.
        """
        # They need blake3, which a program without checkpoints need not have.
        from mpsguard.client.checkpoints.checkpoints import Checkpoints  # noqa: PLC0415
        from mpsguard.client.checkpoints.options import CheckpointOptions  # noqa: PLC0415
        from mpsguard.images.location import default_directory, default_quota  # noqa: PLC0415

        with self._lock:
            if self._role is LeaseRole.READER:
                raise NotPermittedError("a reader takes no checkpoints")
            if self._checkpoints is None:
                # Absolute: the copier starts later, and in the working directory of that time.
                directory = default_directory() if store is None else Path(store).absolute()
                limit = default_quota() if quota is None else quota
                options = CheckpointOptions(directory, limit, spare, buffers, patience, deadline, retries)
                self._checkpoints = Checkpoints(self, options)
            return self._checkpoints

    def checkpoint(self, image: str) -> Checkpoint:
        """Take a checkpoint of all regions and of the state that was published last; see `Checkpoints.take`.

        Returns after the cut. The image is on disk when `Checkpoint.wait` returns; the program goes on meanwhile, and
        announces its writes by `Region.writing`.
        """
        return self.checkpoints().take(image)

    def checkpoint_every(self, seconds: float, image: str) -> None:
        """Take a checkpoint with the first publication after each ``seconds``; 0 ends that."""
        self.checkpoints().every(seconds, image)

    def announce(self, name: str, whole: int, offset: int, size: int) -> Writing:
        """See `Region.writing`."""
        checkpoints = self._checkpoints
        if checkpoints is None:
            return Writing()
        checkpoints.announce(name, whole, offset, size)
        return Writing(checkpoints.write_begins, checkpoints.write_ends)

    def note_mapped(self, name: str, memory: MappedMemory) -> None:
        """Note that this process has mapped a region."""
        self.mapped[name] = memory

    def keep_ahead(self, name: str, mapping: MappedAhead) -> None:
        """Own what this process has mapped of a region before it attaches to it, until `take_ahead` or `close`."""
        self._ahead[name] = mapping

    def take_ahead(self, name: str) -> MappedAhead | None:
        """Return what `keep_ahead` has taken of a region, owned by the caller; None: nothing."""
        return self._ahead.pop(name, None)

    def note_unmapped(self, name: str) -> None:
        """Note that this process unmaps a region."""
        self.mapped.pop(name, None)
        if self._checkpoints is not None:
            self._checkpoints.unmapped(name)

    def _regions_changed(self, name: str, *, new: bool = False) -> None:
        if self._checkpoints is not None:
            self._checkpoints.regions_changed(name, new=new)

    # --- the writer's role

    def acquire(self) -> None:
        """Become the writer.

        Raises:
            LeaseHeldError: there is a writer already.
            StaleGenerationError: this process was fenced off.
        """
        self._on_welcome(self._request(wire.Acquire(0)))

    def has_writer(self) -> bool:
        """Return whether the session has a writer at this moment; raise BadRequestError for an older guard."""
        answer, fds = self._request(wire.HasWriter(0))
        if not isinstance(answer, wire.WriterPresence):
            raise unexpected(answer, fds)
        return answer.present

    @property
    def is_over(self) -> bool:
        """Whether the writer has changed since this process last heard of one; asks no guard."""
        forward = self._forward
        try:
            return forward is None or forward.is_over()
        except UnmappedError:
            return True

    def wait_for_promotion(self, timeout: float | None) -> bool:
        """Wait until the guard makes this standby the writer; return False after ``timeout`` seconds (None: no limit).

        If the guard ends meanwhile, this waits for the next one. Requests of other threads wait too.

        Raises:
            StaleGenerationError: this standby cannot be promoted any more: its lane has faulted, so its CUDA context is
                dead.
            UnknownSessionError: the session was released, or has expired.
        """
        due = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while self._role is not LeaseRole.WRITER:
                if self._role is LeaseRole.FENCED:
                    raise StaleGenerationError(f"no standby of {self.name!r} any more: fenced off, or its lane faulted")
                if self._released:
                    raise UnknownSessionError(f"session {self.name!r} was released while a standby of it waited")
                left = None if due is None else due - time.monotonic()
                if left is not None and left <= 0:
                    return False
                try:
                    self._alive().listen(left)
                except LostError:
                    with suppress(UnavailableError):
                        self._connect(due)
            return True

    def ready(self, timeout: float | None = None) -> bool:
        """Report that everything is created or mapped, and return once this process is the writer.

        Returns at once in a writer; in a standby, once it has been promoted: from then on it publishes, and what the
        former writer still does no longer counts. `mpsguard run --standby` is told of both. If an exception is raised,
        end the process.

        Args:
            timeout: seconds to wait after the vault has received the report; None: no limit.

        Returns:
            False after the timeout; the call may be repeated.

        Raises:
            NotPermittedError: this process is a reader.
            StaleGenerationError: this process was fenced off, or its lane has faulted.
            UnknownSessionError: the session was released, or has expired.
        """
        # The supervisor first: it must know of the ready standby before it learns of the promotion.
        tell_ready()
        if self._role is LeaseRole.WRITER:
            return True
        self.report_ready()
        if promoted := self.wait_for_promotion(timeout):
            tell_ready(promoted=True)
        return promoted

    def report_ready(self) -> None:
        """Have this standby promoted when the writer ends. Does not wait, and tells no supervisor: see `ready`."""
        self._request(wire.Ready(0))

    # --- close

    def close(self, *, in_order: bool = True) -> None:
        """Give the lease back. What this process has mapped stays mapped until it unmaps it.

        If there is no guard at this moment, the lease remains until the process ends. With ``in_order`` False the
        session is left as if the process had died: a ready standby is promoted. A checkpoint that is under way is given
        up: wait for it before.
        """
        checkpoints = self._checkpoints if os.getpid() == self._pid else None
        if checkpoints is not None:
            checkpoints.stop()
        with self._lock:
            if self._connection is not None:
                self._deadline = min(self._deadline, _CLOSING_DEADLINE)
                if in_order and os.getpid() == self._pid:
                    with suppress(VaultError):
                        self._request(wire.Leave(0))
                self._connection.close()
                self._connection = None
            forward, self._forward = self._forward, None
            if forward is not None:
                forward.close()
            latency, self._latency = self._latency, None
        if latency is not None:
            latency.close()
        if checkpoints is not None:
            # Behind the lease: another process may wait for that, and a copier with pinned memory takes long to end.
            checkpoints.close()
        while self._ahead:
            self._ahead.popitem()[1].undo.close()

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

    def _request(self, request: wire.Request, fds: Sequence[int] = ()) -> Answered:
        """Send a request and return its answer; repeat it if the connection breaks (`VaultError.retried`)."""
        with self._lock:
            due = time.monotonic() + self._deadline
            losses = 0
            while True:
                connection = self._alive()
                try:
                    return connection.ask(replace(request, id=connection.next_id()), fds)
                except LostError:
                    _pause(losses, due)
                except VaultError as error:
                    error.retried = losses > 0
                    raise
                self._connect()
                losses += 1

    def _alive(self) -> Connection:
        if os.getpid() != self._pid:
            raise BadRequestError("a session does not survive fork: open another one in the child")
        if self._connection is None:
            raise StaleGenerationError(self._closed)
        return self._connection

    def _connect(self, at_most: float | None = None) -> None:
        """Attach, or reconnect to the lease, until ``at_most`` or the deadline; retry if the vault ends meanwhile."""
        due = min(time.monotonic() + self._deadline, inf if at_most is None else at_most)
        for losses in count():
            if self._connection is not None:
                self._connection.close()
            self._connection = Connection(self._path, max(due - time.monotonic(), 0.0), self._deadline, self._on_notice)
            hello = replace(self._hello, id=self._connection.next_id(), again=self._again)
            try:
                self._on_welcome(self._connection.ask(hello, due=at_most))
            except LostError:
                _pause(losses, due)
            except BaseException:
                self._connection.close()
                raise
            else:
                return

    def _on_welcome(self, answered: Answered) -> None:
        answer, fds = answered
        if not isinstance(answer, wire.Welcome) or len(fds) != 1:
            raise unexpected(answer, fds)
        with self._lock:
            self._again = True
            self._set_role(answer.role, fds[0], answer.capacity, answer.generation)

    def _set_role(self, role: LeaseRole, fd: int, capacity: int, generation: int) -> None:
        before = self._forward
        if before is not None and before.is_of(generation, writable=role is LeaseRole.WRITER):
            # The same state buffer: one process must not publish through two mappings of it.
            os.close(fd)
        else:
            self._forward = ForwardState(fd, capacity, generation, writable=role is LeaseRole.WRITER)
            if before is not None:
                before.close()
        self._role = role
        self._capacity = capacity

    def _on_notice(self, on_notice: wire.Notice, fds: tuple[int, ...]) -> None:
        if isinstance(on_notice, wire.Granted) and len(fds) == 1:
            self._set_role(LeaseRole.WRITER, fds[0], self._capacity, on_notice.generation)
            return
        close_all(fds)
        if isinstance(on_notice, wire.Fenced):
            self._role = LeaseRole.FENCED
        elif isinstance(on_notice, wire.Released) and on_notice.name is None:
            self._released = True

    def _forward_state(self) -> ForwardState:
        forward = self._forward
        if forward is None:
            raise StaleGenerationError(self._closed)
        return forward


def _pause(losses: int, due: float) -> None:
    """Wait before another attempt after a connection was lost; raise UnavailableError if there is no time for one.

    The first loss is that of a guard which is restarted: the next one is asked at once.
    """
    seconds = backoff(losses - 1, _LOOK, _LONGEST_PAUSE) if losses else 0.0
    if time.monotonic() + seconds > due:
        raise UnavailableError("the vault ended again and again while it was asked") from None
    time.sleep(seconds)
