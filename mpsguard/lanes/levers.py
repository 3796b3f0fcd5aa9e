"""The levers of an MPS server: what a client that connects gets of the GPU.

A server takes a client's share of the SMs, its memory limits and its priority from its own settings at the moment when
the control daemon hands the client a socket, in the second of the client's three connections (measured on a H200,
driver 580.159.04: set before that connection and put back as soon as the daemon has answered it, before the client had
the answer, share and memory limit held; set before the third alone, they had no effect). So the levers are set, the
daemon is asked, and they are put back: none of it waits for the client.
"""

import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from mpsguard.lanes.command import CommandFailedError, CommandReply
from mpsguard.lanes.fair_lock import FairLock
from mpsguard.linux.files import file_replacement
from mpsguard.model import ProcessKey
from mpsguard.tasks import finish

_MAX_COMMANDS: Final = 32
"""Of all users but root, which may always set something: some 30 ms."""
_MAX_COMMANDS_OF_A_USER: Final = 4

Ask = Callable[[str], Awaitable[CommandReply]]

_ROUNDED: Final = 0.051
"""Percent by which a share that was taken differs at most from the one that is shown, and a little."""

NO_LIMIT: Final = "0"
"""Takes a server's memory limit away (580); there is no other word for it."""


class LeverError(Exception):
    """A lever could not be set: the driver has none, or it shows another value than it was given."""


class Levers(msgspec.Struct, frozen=True):
    """Values for a client, or of a server at rest; what is None or absent is left as it is."""

    share: float | None = None
    """Percent of the SMs."""
    priority: int | None = None
    """0: normal; 1: below normal."""
    limits: Mapping[str, str] = {}
    """GPU to a limit of memory, such as ``"8G"``."""

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

    def __init__(self, ask: Ask, path: Path, is_running: Callable[[ProcessKey], Awaitable[bool]]) -> None:
        """Create it, and read what a guard before this one has left.

        Args:
            ask: sends a command to the lane's control daemon.
            path: where the values at rest are kept.
            is_running: tells whether a server has not ended.
        """
        self._is_running = is_running
        self._ask = ask
        self._path = path
        self._lock = FairLock()
        self._commands: Counter[int] = Counter()
        """Commands of each user that wait for the lock, or hold it."""
        self._rest = self._load()

    @asynccontextmanager
    async def left_alone(self, uid: int) -> AsyncIterator[None]:
        """Keep the levers at rest, for a command of ``uid`` that may change them: what it sets is where they rest then.

        Raises:
            CommandFailedError: too many such commands wait.
        """
        if uid not in (0, os.geteuid()) and (
            self._commands[uid] >= _MAX_COMMANDS_OF_A_USER or self._commands.total() >= _MAX_COMMANDS
        ):
            raise CommandFailedError("too many commands that set something wait already")
        self._commands[uid] += 1
        try:
            async with self._lock.held(uid):
                try:
                    yield
                finally:
                    self._rest = None
                    self._path.unlink(missing_ok=True)
        finally:
            self._commands[uid] -= 1

    @asynccontextmanager
    async def moved(self, server: ProcessKey, levers: Levers, uid: int) -> AsyncIterator[None]:
        """Set the levers for one client, of ``uid``, and put them back at the end.

        Raises:
            LeverError: a lever is missing, or was not taken; all are back then.
            CommandFailedError: the control daemon does not answer.
            OSError: what is to be put back cannot be written down; nothing was moved.
        """
        async with self._lock.held(uid):
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
        known = Levers()
        if self._rest is not None:
            same = self._rest.server == server
            known = self._rest.levers if same else Levers(priority=self._rest.levers.priority)
        unknown = Levers(
            levers.share if known.share is None else None,
            levers.priority if known.priority is None else None,
            {gpu: limit for gpu, limit in levers.limits.items() if gpu not in known.limits},
        )
        if unknown or self._rest is None or self._rest.server != server:
            read = await self._read(server, unknown)
            rest = _AtRest(
                server,
                Levers(
                    known.share if read.share is None else read.share,
                    known.priority if read.priority is None else read.priority,
                    {**known.limits, **read.limits},
                ),
            )
            file_replacement.replace(self._path, msgspec.json.encode(rest))
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
        limits = {gpu: await self._limit(server, gpu) or NO_LIMIT for gpu in levers.limits}
        return Levers(share, priority, limits)

    async def _set(self, server: ProcessKey, levers: Levers, *, verify: bool = True) -> None:
        if levers.share is not None:
            await self._ask(f"set_active_thread_percentage {server.pid} {levers.share:g}")
        if levers.priority is not None:
            await self._ask(f"set_default_client_priority {levers.priority}")
        for gpu, limit in levers.limits.items():
            await self._ask(f"set_device_pinned_mem_limit {server.pid} {gpu} {limit}")
        if verify:
            shown = await self._read(server, levers)
            if (
                not same_share(shown.share, levers.share)
                or shown.priority != levers.priority
                or any(limit_bytes(shown.limits[gpu]) != limit_bytes(limit) for gpu, limit in levers.limits.items())
            ):
                raise LeverError(f"server {server.pid} has {_words(shown)} where {_words(levers)} was set")

    async def _limit(self, server: ProcessKey, gpu: str) -> str | None:
        lines = (await self._ask(f"get_device_pinned_mem_limit {server.pid} {gpu}")).lines
        word = lines[0].strip() if lines else ""
        # Without a limit nothing is said (580), or a sentence.
        return word if limit_bytes(word) is not None else None


def same_share(shown: float | None, wanted: float | None) -> bool:
    """Return whether the daemon shows a share, which it does with one decimal (535 to 580)."""
    if shown is None or wanted is None:
        return shown is wanted
    return abs(shown - wanted) < _ROUNDED


def _number(reply: CommandReply) -> float:
    try:
        return float(reply.lines[0])
    except (IndexError, ValueError):
        raise LeverError(f"the control daemon has no such lever: {' '.join(reply.lines) or 'no answer'}") from None


def limit_bytes(limit: str) -> int | None:
    """Return the bytes of a limit of memory in the daemon's words; None if it is none."""
    if limit[-1:] not in ("G", "M") or not limit[:-1].isdecimal():
        return None
    return int(limit[:-1]) << (30 if limit[-1] == "G" else 20)


def _words(levers: Levers) -> str:
    parts = [f"{levers.share:g} %"] if levers.share is not None else []
    parts += [f"priority {levers.priority}"] if levers.priority is not None else []
    return ", ".join([*parts, *(f"{limit} of GPU {gpu}" for gpu, limit in levers.limits.items())])
