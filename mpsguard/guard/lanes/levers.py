"""The levers of an MPS server: what a client that connects gets of the GPU.

A server takes a client's share of the SMs, its memory limits and its priority from its own settings at the moment when
the control daemon hands the client a socket, in the second of the client's three connections (measured on a H200,
driver 580.159.04: set before that connection and put back as soon as the daemon has answered it, before the client had
the answer, share and memory limit held; set before the third alone, they had no effect). So the levers are set, the
daemon is asked, and they are put back: none of it waits for the client.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from mpsguard.guard import mps_values
from mpsguard.guard.lanes.command import CommandFailedError, CommandReply
from mpsguard.linux.files.directory import replace_file
from mpsguard.linux.identity import ProcessKey, is_root
from mpsguard.linux.tasks import finish
from mpsguard.linux.user_lock import UserLock
from mpsguard.linux.user_share import UserShare

_MAX_COMMANDS: Final = 32
"""Of all users but root, which may always set something: some 30 ms."""
_MAX_COMMANDS_OF_A_USER: Final = 4

Ask = Callable[[str], Awaitable[CommandReply]]

_ROUNDED: Final = 0.051
"""Percent by which a share that was taken differs at most from the one that is shown, and a little."""

_GIB: Final = 1 << 30


class LeverError(Exception):
    """A lever could not be set: the driver has none, or what it shows cannot come of what it was given."""


class Levers(msgspec.Struct, frozen=True):
    """Values for a client, or of a server at rest; what is None or absent is left as it is."""

    share: float | None = None
    """Percent of the SMs."""
    priority: int | None = None
    """0: normal; 1: below normal."""
    limits: Mapping[str, str] = {}
    """GPU to a limit of memory as it was asked for, such as ``"8G"``."""

    def __bool__(self) -> bool:
        return self.share is not None or self.priority is not None or bool(self.limits)


NONE: Final = Levers()
"""Nothing is set."""


class _AtRest(msgspec.Struct, frozen=True):
    """What a server had before its levers were moved first; on disk, so that a guard's successor can put it back."""

    server: ProcessKey
    levers: Levers


class ServerLevers:
    """Moves the levers of one lane's server, for one client at a time."""

    def __init__(
        self,
        ask: Ask,
        path: Path,
        is_running: Callable[[ProcessKey], Awaitable[bool]],
        defaults: Callable[[], Levers],
    ) -> None:
        """Create it, and read what a guard before this one has left.

        Args:
            ask: sends a command to the lane's control daemon.
            path: where the values at rest are kept.
            is_running: tells whether a server has not ended.
            defaults: returns what was asked for as defaults: a server that starts has it.
        """
        self._defaults = defaults
        self._is_running = is_running
        self._ask = ask
        self._path = path
        self._lock: UserLock[int] = UserLock()
        self._commands: UserShare[int] = UserShare(_MAX_COMMANDS, _MAX_COMMANDS_OF_A_USER)
        """Commands that wait for the lock, or hold it."""
        self._rest = self._load()

    @asynccontextmanager
    async def left_alone(self, user: int) -> AsyncIterator[None]:
        """Keep the levers at rest, for a user's command that may change them (`will_change`, `rests_at`).

        Raises:
            CommandFailedError: too many such commands wait.
        """
        own = is_root(user) or user == os.geteuid()
        place = self._commands.exceed(user) if own else self._commands.take(user)
        if place is None:
            raise CommandFailedError("too many commands that set something wait already")
        with place:
            async with self._lock.held(user):
                yield

    async def default_will_change(self, servers: Iterable[ProcessKey], levers: Levers) -> None:
        """Note what servers that run have of defaults that are about to change: they keep it.

        Only the priority is all servers'.
        """
        if levers.priority is not None and self._rest is not None:
            self._keep(self._rest.server, msgspec.structs.replace(self._rest.levers, priority=None))
        noted = Levers(levers.share, None, levers.limits)
        for server in servers if noted else ():
            # One that is only starting will have the new ones.
            with suppress(LeverError, CommandFailedError, OSError):
                await self._learn_rest(server, noted)

    def will_change(self, server: ProcessKey, levers: Levers) -> None:
        """Forget what a server has of levers that a user's command may change."""
        if self._rest is not None and self._rest.server == server:
            known = self._rest.levers
            limits = {gpu: limit for gpu, limit in known.limits.items() if gpu not in levers.limits}
            share = known.share if levers.share is None else None
            self._keep(server, Levers(share, known.priority, limits))

    def rests_at(self, server: ProcessKey, levers: Levers) -> None:
        """Note what a user's command has set at a server: its levers rest there from now on."""
        known = self._known(server)
        share = known.share if levers.share is None else levers.share
        self._keep(server, Levers(share, known.priority, {**known.limits, **levers.limits}))

    @asynccontextmanager
    async def moved(self, server: ProcessKey, levers: Levers, uid: int) -> AsyncIterator[None]:
        """Set the levers for one client, of ``uid``, and put them back at the end; `NONE`: they rest meanwhile.

        Raises:
            LeverError: a lever is missing, or was not taken; all are back then.
            CommandFailedError: the control daemon does not answer.
            OSError: what is to be put back cannot be written down; nothing was moved.
        """
        async with self._lock.held(uid):
            if not levers:
                yield
                return
            await self._learn_rest(server, levers)
            try:
                await self._set(server, levers)
                yield
            finally:
                # A cancelled handshake must not leave a lever for the next client, which waits for the lock.
                await finish(self._put_back())

    async def restore(self) -> None:
        """Put back what a guard that was killed in between may have left.

        What it moved at a server that is gone has gone with it, but the priority, which is the control daemon's.
        """
        async with self._lock.held(os.geteuid()):
            if self._rest is not None and not await self._is_running(self._rest.server):
                self._rest = _AtRest(self._rest.server, Levers(priority=self._rest.levers.priority))
            await self._put_back()

    async def _put_back(self) -> None:
        if self._rest is not None:
            await self._set(self._rest.server, self._rest.levers, verify=False)

    async def _learn_rest(self, server: ProcessKey, levers: Levers) -> None:
        """Read and keep, on disk first, the values at rest of levers that were not moved before at this server."""
        known = self._known(server)
        unknown = Levers(
            levers.share if known.share is None else None,
            levers.priority if known.priority is None else None,
            {gpu: limit for gpu, limit in levers.limits.items() if gpu not in known.limits},
        )
        if unknown or self._rest is None or self._rest.server != server:
            read = as_asked(await self._read(server, unknown), self._defaults())
            rest = Levers(
                known.share if read.share is None else read.share,
                known.priority if read.priority is None else read.priority,
                {**known.limits, **read.limits},
            )
            self._write(_AtRest(server, rest))

    def _known(self, server: ProcessKey) -> Levers:
        """Return the values at rest that are known of a server; the priority is that of every server."""
        if self._rest is None or self._rest.server == server:
            return Levers() if self._rest is None else self._rest.levers
        return Levers(priority=self._rest.levers.priority)

    def _keep(self, server: ProcessKey, levers: Levers) -> None:
        """Keep values at rest; without a file they are read anew by the next guard."""
        self._rest = _AtRest(server, levers)
        try:
            self._write(self._rest)
        except OSError:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _write(self, rest: _AtRest) -> None:
        replace_file(self._path, msgspec.json.encode(rest))
        self._rest = rest

    def _load(self) -> _AtRest | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_AtRest)
        except (OSError, msgspec.DecodeError):
            return None

    async def _read(self, server: ProcessKey, levers: Levers) -> Levers:
        """Return the present values of those levers that ``levers`` has."""
        share = priority = None
        if levers.share is not None:
            share = _number(await self._ask(f"get_active_thread_percentage {server.pid}"))
        if levers.priority is not None:
            priority = int(_number(await self._ask("get_default_client_priority")))
        # A daemon without UUIDs takes each for the first device, and takes its limit away.
        named = any(map(mps_values.is_named, levers.limits))
        if named and await self._limit(server, mps_values.NO_DEVICE) != mps_values.NO_LIMIT:
            raise LeverError("the driver has limits of memory by a GPU's number alone")
        limits = {gpu: await self._limit(server, gpu) for gpu in levers.limits}
        return Levers(share, priority, limits)

    async def _set(self, server: ProcessKey, levers: Levers, *, verify: bool = True) -> None:
        if levers.share is not None:
            await self._ask(f"set_active_thread_percentage {server.pid} {mps_values.percentage_text(levers.share)}")
        if levers.priority is not None:
            await self._ask(f"set_default_client_priority {levers.priority}")
        for gpu, limit in levers.limits.items():
            await self._ask(f"set_device_pinned_mem_limit {server.pid} {gpu} {limit}")
        if verify:
            shown = await self._read(server, levers)
            if (
                not same_share(shown.share, levers.share)
                or shown.priority != levers.priority
                or any(not same_limit(shown.limits[gpu], limit) for gpu, limit in levers.limits.items())
            ):
                raise LeverError(f"server {server.pid} has {_words(shown)} where {_words(levers)} was set")

    async def _limit(self, server: ProcessKey, gpu: str) -> str:
        lines = (await self._ask(f"get_device_pinned_mem_limit {server.pid} {gpu}")).lines
        word = lines[0].strip() if lines else ""
        # Without a limit nothing is said (535 to 580), or a sentence.
        return word if mps_values.limit_bytes(word) else mps_values.NO_LIMIT


def as_asked(shown: Levers, defaults: Levers) -> Levers:
    """Return what a server shows of its levers as it was asked for.

    Args:
        shown: by the daemon, which shows one decimal of a share, and whole GiB.
        defaults: what was asked for as defaults since the server started: where the daemon would show a default so, it
            is what the server has. What none of them explains was set past the guard, or before it came: what is
            shown is all that there is.
    """
    share = defaults.share if defaults.share is not None and same_share(shown.share, defaults.share) else shown.share
    limits = {
        gpu: asked if (asked := defaults.limits.get(gpu)) is not None and same_limit(limit, asked) else limit
        for gpu, limit in shown.limits.items()
    }
    return Levers(share, shown.priority, limits)


def same_share(shown: float | None, asked: float | None) -> bool:
    """Return whether the daemon would show a share so, which it does with one decimal (535 to 580)."""
    if shown is None or asked is None:
        return shown is asked
    return abs(shown - asked) < _ROUNDED


def same_limit(shown: str, asked: str) -> bool:
    """Return whether the daemon would show a limit so, which it does in whole GiB from one on (535, 550, 595)."""
    there, wanted = mps_values.limit_bytes(shown), mps_values.limit_bytes(asked)
    return there in (wanted, wanted // _GIB * _GIB if wanted >= _GIB else wanted)


def _number(reply: CommandReply) -> float:
    try:
        return float(reply.lines[0])
    except (IndexError, ValueError):
        raise LeverError(f"the control daemon has no such lever: {' '.join(reply.lines) or 'no answer'}") from None


def _words(levers: Levers) -> str:
    parts = [f"{levers.share:g} %"] if levers.share is not None else []
    parts += [f"priority {levers.priority}"] if levers.priority is not None else []
    return ", ".join([*parts, *(f"{limit} of GPU {gpu}" for gpu, limit in levers.limits.items())])
