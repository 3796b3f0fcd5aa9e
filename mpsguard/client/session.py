# long: one lease, one lock: the requests, the connection they come back over, and the forward state
"""A session with the vault."""

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from math import inf
from types import TracebackType
from typing import Final, Self

from msgspec.structs import replace

from mpsguard.client.forward_state import ForwardState, UnmappedError
from mpsguard.client.kept_connections import tell_ready
from mpsguard.client.region import Chunk, Region
from mpsguard.client.vault_connection import Answered, Connection, LostError, unexpected
from mpsguard.linux.fd_closer import close_all
from mpsguard.vault import wire
from mpsguard.vault.address import DEFAULT_SOCKET, SOCKET_VARIABLE
from mpsguard.vault.errors import (
    BadRequestError,
    ExistsError,
    NotPermittedError,
    StaleGenerationError,
    UnavailableError,
    UnknownRegionError,
    UnknownSessionError,
    VaultError,
)
from mpsguard.vault.region import Grant, Layout, Role
from mpsguard.vault.region import Region as Description
from mpsguard.vault.state_buffer import State

_CLOSING_DEADLINE: Final = 1.0
"""Seconds to wait for a guard that is being restarted, only to give the lease back."""


class Session:
    """A lease on a named session, for as long as this object, or else this process, lives.

    Safe for use by several threads; a child made by fork must open a session of its own. The guard may be restarted at
    any time: the lease stands, requests wait up to ``deadline`` seconds for the next one, and `publish` and `state` go
    on meanwhile.
    """

    def __init__(
        self,
        name: str,
        *,
        role: Role = Role.WRITER,
        socket: str | None = None,
        owner: int | None = None,
        capacity: int = 65536,
        keep: float | None = 300.0,
        grants: Sequence[Grant] = (),
        deadline: float = 10.0,
    ) -> None:
        """Attach to the session ``name`` of the user ``owner`` (uid; None: our own).

        A writer makes it if it is not there: then its forward state may have ``capacity`` bytes, it is kept ``keep``
        seconds after the last lease has ended (None: until it is released), and other users may use it by ``grants``.
        ``deadline`` (seconds) is for each request.

        Raises LeaseHeldError if there is a writer, UnknownSessionError if there is no session to read,
        NotPermittedError if it is another user's, QuotaError, and UnavailableError if there is no vault.
        """
        self.name = name
        self._path = socket or os.environ.get(SOCKET_VARIABLE) or DEFAULT_SOCKET
        self._deadline = deadline
        self._owner = owner
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._role = role
        self._released = False
        self._again = False
        self._forward: ForwardState | None = None
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

    # --- what it is

    @property
    def role(self) -> Role:
        """What this process may do, as far as it has been told: a writer may be fenced off, a standby promoted."""
        return self._role

    @property
    def generation(self) -> int:
        """Of the record that this process publishes in, or reads."""
        return self._record().generation

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
        """Give memory to the vault as a region; it is there as a whole, or not at all.

        ``chunks`` in the order in which they are mapped; their descriptors stay the caller's. ``va``: the address at
        which everybody maps the first one; ``gpu``: the UUID of the GPU they lie on, None for memfds.

        Raises ExistsError, QuotaError, TooLargeError, LayoutMismatchError (the addresses overlap another region's),
        WrongGpuError, BadRequestError (the descriptors are not such memory), StaleGenerationError.
        """
        layout = Layout(tuple(chunk.size for chunk in chunks), va, gpu)
        fds = tuple(chunk.fd for chunk in chunks)
        request = wire.Create(0, name, layout, metadata)
        try:
            description = self._described(request, fds)
        except ExistsError as error:
            description = self.describe(name)
            # If the connection broke, it may be the region that we have made ourselves.
            if not error.retried or (description.layout, description.metadata) != (layout, metadata):
                raise
        return Region(self, description, fds, owned=False)

    def open(self, name: str, *, sizes: Sequence[int] = (), va: int | None = None, gpu: str | None = None) -> Region:
        """Get a region's descriptors; until it is closed it cannot be released.

        What is given of ``sizes`` (bytes of each chunk), ``va`` and ``gpu`` must be the region's: LayoutMismatchError,
        WrongGpuError. Also raises UnknownRegionError, StaleGenerationError.
        """
        expected = Layout(tuple(sizes), va, gpu)
        due = time.monotonic() + self._deadline
        with self._lock:
            while True:
                answer, fds = self._ask(wire.Open(0, name, expected))
                if not isinstance(answer, wire.Opened):
                    raise unexpected(answer, fds)
                try:
                    fds += self._alive().more_fds(answer.id, len(answer.region.layout.sizes) - len(fds))
                except LostError:
                    # The vault ended in the middle: the next one is asked for all of them.
                    close_all(fds)
                    if time.monotonic() > due:
                        raise UnavailableError("the vault ended again and again while it was asked") from None
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
        """Open a region; in a writer, make it first if it is not there.

        The same call serves the first start, a standby, a restart while the session is kept, and the end of both.

        Args:
            name: The region's name in the session.
            make: Returns new chunks; called only if the region has to be made. Their descriptors are closed here.
            va, gpu: As for `create`; a region that is there must have the same.
            metadata: Of a new region; one that is there keeps its own.

        Raises: UnknownRegionError in a standby or reader if there is no such region; else as `open` and `create`.
        """
        try:
            return self.open(name, va=va, gpu=gpu)
        except UnknownRegionError:
            if self._role is not Role.WRITER:
                raise
        chunks = make()
        try:
            self.create(name, chunks, va=va, gpu=gpu, metadata=metadata)
        finally:
            close_all([chunk.fd for chunk in chunks])
        return self.open(name, va=va, gpu=gpu)

    def describe(self, name: str) -> Description:
        """A region as it is now, without its descriptors; UnknownRegionError."""
        return self._described(wire.Describe(0, name))

    def names(self) -> Iterator[str]:
        """The names of all regions, in alphabetical order."""
        after, more = "", True
        while more:
            answer, fds = self._ask(wire.Names(0, after))
            if not isinstance(answer, wire.NameList):
                raise unexpected(answer, fds)
            yield from answer.names
            more = answer.more and bool(answer.names)
            after = answer.names[-1] if answer.names else ""

    def seal(self, name: str, chunks: tuple[int, ...] | None = None) -> Description:
        """See `Region.seal`."""
        return self._described(wire.Seal(0, name, chunks))

    def set_metadata(self, name: str, metadata: bytes, expected_version: int | None = None) -> Description:
        """See `Region.set_metadata`."""
        try:
            return self._described(wire.SetMetadata(0, name, metadata, expected_version))
        except StaleGenerationError as error:
            description = self.describe(name)
            if error.retried and description.metadata == metadata:
                return description
            raise

    def release(self, name: str | None = None) -> None:
        """Take a region out of the vault; None: the whole session.

        LeaseHeldError while another process maps it (holds a lease on the session). StaleGenerationError,
        NotPermittedError, UnknownRegionError.
        """
        try:
            self._ask(wire.Release(0, name))
        except UnknownRegionError as error:
            if not error.retried:
                raise

    def forget(self, name: str) -> None:
        """See `Region.close`."""
        with suppress(VaultError):
            self._ask(wire.Close(0, name))

    # --- the forward state

    def publish(self, state: bytes) -> int:
        """Make ``state`` the session's newest and return its sequence number: from then on it survives this process.

        Costs one to two microseconds, needs no guard. StaleGenerationError once this writer is fenced off: then the
        state does not count, and nothing may be done as if it did. TooLargeError beyond the session's capacity.
        """
        forward = self._record()
        if forward.publisher is None:
            raise NotPermittedError(f"a {self._role} publishes nothing")
        try:
            return forward.publisher.publish(state)
        except ValueError:
            forward.check_mapped()
            raise

    def state(self) -> bytes | None:
        """The newest state as it was published, by whatever process; None if there is none. See `latest`."""
        found = self.latest()
        return None if found is None else found.state

    def latest(self) -> State | None:
        """The newest state with its sequence number and generation. Needs a guard only after a change of writers."""
        while True:
            forward = self._record()
            with suppress(UnmappedError):
                state = forward.latest()
                # Looked at afterwards: a state read before the end of its generation is what is carried over.
                if not forward.is_over():
                    return state
            with self._lock:
                if self._forward is forward:
                    self._welcomed(self._ask(wire.GetStateBuffer(0)))

    # --- who writes

    def acquire(self) -> None:
        """Become the writer; LeaseHeldError if there is one, StaleGenerationError if we were fenced off."""
        self._welcomed(self._ask(wire.Acquire(0)))

    def wait_for_promotion(self, timeout: float | None) -> bool:
        """Wait until the guard makes this standby the writer; False after ``timeout`` seconds (None: no limit).

        If the guard goes away meanwhile, waits for the next one. Requests of other threads wait, too.
        StaleGenerationError if it can go on no more: its lane has faulted, so that its CUDA context is dead.
        UnknownSessionError if the session was released, or its time has run out.
        """
        due = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while self._role is not Role.WRITER:
                if self._role is Role.FENCED:
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
        """Say that all is made or mapped, and return once this process is the one that is to work.

        At once in a writer. In a standby when it has been promoted: from then on it publishes, and what the writer
        before still does counts no more. False if that did not happen within ``timeout`` seconds (None: no limit) of
        the vault's having heard it; it may be asked again. `mpsguard run --standby` hears of both. NotPermittedError
        for a reader; StaleGenerationError if we were fenced off, or our lane has faulted, UnknownSessionError if the
        session is no more: then end this process.
        """
        # The supervisor first: it must not learn of a promotion before it knows that there was somebody to promote.
        tell_ready()
        if self._role is Role.WRITER:
            return True
        self._ask(wire.Ready(0))
        if promoted := self.wait_for_promotion(timeout):
            tell_ready(promoted=True)
        return promoted

    # --- its end

    def close(self, *, in_order: bool = True) -> None:
        """Give the lease back. What is mapped from regions' descriptors stays mapped until the process unmaps it.

        If there is no guard at this moment, the lease stands until this process ends. With ``in_order`` false the
        session is left as by a process that died: a standby that is ready goes on with it.
        """
        with self._lock:
            if self._connection is not None:
                self._deadline = min(self._deadline, _CLOSING_DEADLINE)
                if in_order and os.getpid() == self._pid:
                    with suppress(VaultError):
                        self._ask(wire.Leave(0))
                self._connection.close()
                self._connection = None
            forward, self._forward = self._forward, None
            if forward is not None:
                forward.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failed = error.code not in (None, 0) if isinstance(error, SystemExit) else isinstance(error, Exception)
        self.close(in_order=not failed)

    # --- asking

    def _described(self, request: wire.Request, fds: Sequence[int] = ()) -> Description:
        answer, came = self._ask(request, fds)
        if not isinstance(answer, wire.Done) or answer.region is None:
            raise unexpected(answer, came)
        return answer.region

    def _ask(self, request: wire.Request, fds: Sequence[int] = ()) -> Answered:
        """The answer to a request, which is asked again if the connection breaks (then `VaultError.retried`)."""
        with self._lock:
            due = time.monotonic() + self._deadline
            retried = False
            while True:
                connection = self._alive()
                try:
                    return connection.ask(replace(request, id=connection.next_id()), fds)
                except LostError:
                    if time.monotonic() > due:
                        raise UnavailableError("the vault ended again and again while it was asked") from None
                except VaultError as error:
                    error.retried = retried
                    raise
                self._connect()
                retried = True

    def _alive(self) -> Connection:
        if os.getpid() != self._pid:
            raise BadRequestError("a session does not survive fork: open another one in the child")
        if self._connection is None:
            raise StaleGenerationError("this session is closed")
        return self._connection

    def _connect(self, at_most: float | None = None) -> None:
        """Attach, or come back to our lease, as often as the vault ends meanwhile: to the deadline or ``at_most``."""
        due = min(time.monotonic() + self._deadline, inf if at_most is None else at_most)
        while True:
            if self._connection is not None:
                self._connection.close()
            self._connection = Connection(self._path, max(due - time.monotonic(), 0.0), self._deadline, self._noticed)
            hello = replace(self._hello, id=self._connection.next_id(), again=self._again)
            try:
                self._welcomed(self._connection.ask(hello, due=at_most))
            except LostError:
                if time.monotonic() > due:
                    raise UnavailableError("the vault ended again and again while it was asked") from None
            except BaseException:
                self._connection.close()
                raise
            else:
                return

    def _welcomed(self, answered: Answered) -> None:
        answer, fds = answered
        if not isinstance(answer, wire.Welcome) or len(fds) != 1:
            raise unexpected(answer, fds)
        with self._lock:
            self._again = True
            self._enter(answer.role, fds[0], answer.capacity, answer.generation)

    def _enter(self, role: Role, fd: int, capacity: int, generation: int) -> None:
        before = self._forward
        if before is not None and before.is_of(generation, writable=role is Role.WRITER):
            # The same record: nobody shall publish in two mappings of it.
            os.close(fd)
        else:
            self._forward = ForwardState(fd, capacity, generation, writable=role is Role.WRITER)
            if before is not None:
                before.close()
        self._role = role
        self._capacity = capacity

    def _noticed(self, notice: wire.Notice, fds: tuple[int, ...]) -> None:
        if isinstance(notice, wire.Granted) and len(fds) == 1:
            self._enter(Role.WRITER, fds[0], self._capacity, notice.generation)
            return
        close_all(fds)
        if isinstance(notice, wire.Fenced):
            self._role = Role.FENCED
        elif isinstance(notice, wire.Released) and notice.name is None:
            self._released = True

    def _record(self) -> ForwardState:
        forward = self._forward
        if forward is None:
            raise StaleGenerationError("this session is closed")
        return forward
