"""The lease of a process on a session: its connection with the vault, its role, and the state buffer."""

import os
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import count
from math import inf
from typing import Final

from msgspec.structs import replace

from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.pacing import backoff
from mpsguard.vault.client.forward_state import ForwardState, UnmappedError
from mpsguard.vault.client.kept_connections import tell_ready
from mpsguard.vault.client.vault_connection import Answered, Connection, LostError, unexpected
from mpsguard.vault.wire import wire
from mpsguard.vault.wire.errors import (
    BadRequestError,
    StaleGenerationError,
    UnavailableError,
    UnknownSessionError,
    VaultError,
)
from mpsguard.vault.wire.region import LeaseRole
from mpsguard.vault.wire.session_page import SessionPage
from mpsguard.vault.wire.state_buffer import State

_FDS_OF_STATE: Final = 2
"""State buffer and page."""
_LOOK: Final = 0.005
_LONGEST_PAUSE: Final = 0.25
"""Seconds between two attempts to ask a vault that ends each connection."""
_CLOSING_DEADLINE: Final = 1.0
"""Seconds to wait for a restarting guard when only the lease is to be given back."""


class HeldLease:
    """A lease, valid while this object is open (if the guard restarts, while the process lives).

    One lock is over all that changes: the connection, which is made anew when the guard restarts, the role, and the
    state buffer of the session's generation.
    """

    def __init__(self, path: str, hello: wire.Hello, deadline: float) -> None:
        """Attach.

        Args:
            path: of the vault's socket.
            hello: what is asked for.
            deadline: seconds for each request.

        Raises:
            VaultError: as `mpsguard.vault.client.session.Session`.
        """
        self.name = hello.session
        self._path = path
        self._hello = hello
        self._deadline = deadline
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._role = hello.role
        self._released = False
        self._closed = f"session {self.name!r} is closed"
        """What a call on the closed session says."""
        self._again = False
        self._page: SessionPage | None = None
        """One for as long as the session exists."""
        self._forward: ForwardState | None = None
        self._connection: Connection | None = None
        self._connect()

    @property
    def role(self) -> LeaseRole:
        """The last known role of this process: a writer may be fenced off, a standby promoted."""
        return self._role

    @property
    def generation(self) -> int:
        """Generation of the state buffer that this process publishes in or reads."""
        return self._forward_state().generation

    @property
    def page(self) -> SessionPage:
        """What the guard tells of this session."""
        if self._page is None:
            raise StaleGenerationError(self._closed)
        return self._page

    @property
    def capacity(self) -> int:
        """Maximum size of the forward state in bytes."""
        return self._capacity

    @property
    def socket(self) -> str:
        """Path of the vault's socket."""
        return self._path

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

    # --- the state buffer

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

    def _forward_state(self) -> ForwardState:
        forward = self._forward
        if forward is None:
            raise StaleGenerationError(self._closed)
        return forward

    def _is_writer(self) -> bool:
        """Return whether this process is the writer, and was not fenced off; asks no guard."""
        forward = self._forward
        if self._role is not LeaseRole.WRITER or forward is None:
            return False
        try:
            return not forward.is_over()
        except UnmappedError:
            return False

    # --- the end

    @property
    def _is_own(self) -> bool:
        """Whether this process attached, and not one that forked it."""
        return os.getpid() == self._pid

    def _give_back(self, *, in_order: bool) -> None:
        """End the lease; with ``in_order`` False as if the process had died."""
        with self._lock:
            if self._connection is not None:
                self._deadline = min(self._deadline, _CLOSING_DEADLINE)
                if in_order and self._is_own:
                    with suppress(VaultError):
                        self._request(wire.Leave(0))
                self._connection.close()
                self._connection = None
            forward, self._forward = self._forward, None
            if forward is not None:
                forward.close()

    def _close_page(self) -> None:
        page, self._page = self._page, None
        if page is not None:
            page.close()

    # --- requests

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
                    pause(losses, due)
                except VaultError as error:
                    error.retried = losses > 0
                    raise
                self._connect()
                losses += 1

    def _alive(self) -> Connection:
        if not self._is_own:
            raise BadRequestError("a session does not survive fork: open another one in the child")
        if self._connection is None:
            raise StaleGenerationError(self._closed)
        return self._connection

    def _connect(self, at_most: float | None = None) -> None:
        """Attach, or reconnect to the lease, until ``at_most`` or the deadline; retry if the vault ends meanwhile."""
        due = min(time.monotonic() + self._deadline, inf if at_most is None else at_most)
        before = self._connection
        for losses in count():
            connection = Connection(self._path, max(due - time.monotonic(), 0.0), self._deadline, self._on_notice)
            hello = replace(self._hello, id=connection.next_id(), again=self._again)
            try:
                self._on_welcome(connection.ask(hello, due=at_most))
            except LostError:
                connection.close()
                pause(losses, due)
            except BaseException:
                connection.close()
                raise
            else:
                break
        self._connection = connection
        # Not before: a request on it may have been interrupted, and its end would end the lease.
        if before is not None:
            before.close()

    def _on_welcome(self, answered: Answered) -> None:
        answer, fds = answered
        if not isinstance(answer, wire.Welcome) or len(fds) != _FDS_OF_STATE:
            raise unexpected(answer, fds)
        with self._lock:
            self._again = True
            self._set_role(answer.role, fds, answer.capacity, answer.generation)

    def _set_role(self, role: LeaseRole, fds: Sequence[int], capacity: int, generation: int) -> None:
        before, (fd, page_fd) = self._forward, fds
        with ExitStack() as undo:
            undo.callback(os.close, fd)
            try:
                page = self._page = self._page or SessionPage(page_fd)
            finally:
                os.close(page_fd)
            # One process must not publish through two mappings of the same state buffer.
            if before is None or not before.is_of(generation, writable=role is LeaseRole.WRITER):
                undo.pop_all()
                self._forward = ForwardState(fd, capacity, generation, page, writable=role is LeaseRole.WRITER)
                if before is not None:
                    before.close()
        self._role = role
        self._capacity = capacity

    def _on_notice(self, on_notice: wire.Notice, fds: tuple[int, ...]) -> None:
        if isinstance(on_notice, wire.Granted) and len(fds) == _FDS_OF_STATE:
            self._set_role(LeaseRole.WRITER, fds, self._capacity, on_notice.generation)
            return
        close_all(fds)
        if isinstance(on_notice, wire.Fenced):
            self._role = LeaseRole.FENCED
        elif isinstance(on_notice, wire.Released) and on_notice.name is None:
            self._released = True


def pause(losses: int, due: float) -> None:
    """Wait before another attempt after a connection was lost; raise UnavailableError if there is no time for one.

    The first loss is that of a guard which is restarted: the next one is asked at once.
    """
    seconds = backoff(losses - 1, _LOOK, _LONGEST_PAUSE) if losses else 0.0
    if time.monotonic() + seconds > due:
        raise UnavailableError("the vault ended again and again while it was asked") from None
    time.sleep(seconds)
