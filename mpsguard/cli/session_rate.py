"""The rate at which a session goes on, from two looks at its counters."""

import asyncio
import time
from enum import StrEnum
from typing import Final

import msgspec

from mpsguard.cli.session import CliSession
from mpsguard.guard.control_api import async_client
from mpsguard.guard.control_api.async_client import NoAnswerError
from mpsguard.guard.control_api.messages.vault import SessionView, ShowArguments
from mpsguard.guard.sizing.procedure import NotMeasurableError
from mpsguard.guard.sizing.rate import CounterReading
from mpsguard.vault.wire.region import LeaseRole

_LOOK_EVERY: Final = 0.1
"""Seconds between two looks whether the session has begun: a look costs the guard less than a millisecond."""


class Quantity(StrEnum):
    """What is measured."""

    RUN_TIME = "run-time"
    """Seconds from the start of the command to its end."""
    PUBLICATIONS = "publications"
    """Seconds for a published forward state."""
    REQUESTS = "requests"
    """Seconds of a request that the program marks."""


class RunLimits(msgspec.Struct, frozen=True):
    """How long things take; in seconds."""

    watched: float
    warm_up: float
    """Before a rate is watched."""
    run: float
    """A run at most."""


def reading(seen: SessionView, quantity: Quantity, at: float) -> CounterReading | None:
    """Return a session's counter; None if no process writes there, or nothing was counted."""
    if seen.summary.writer is None:
        return None
    if quantity is Quantity.REQUESTS:
        marked = seen.latency
        if marked is None or not marked.requests():
            return None
        return CounterReading(at, seen.summary.generation, marked.requests(), marked.total_seconds)
    return CounterReading(at, seen.summary.generation, seen.sequence) if seen.sequence else None


class SessionRate:
    """The counters of one session, looked at through the guard."""

    def __init__(self, session: CliSession, uid: int, name: str, quantity: Quantity, limits: RunLimits) -> None:
        """``name``: that of the session, which user ``uid`` owns."""
        self.name = name
        self.uid = uid
        self._session = session
        self._quantity = quantity
        self._limits = limits

    async def _ask(self) -> SessionView | None:
        """Return what the vault shows of the session; None if there is no such session, or no guard."""
        asked = ShowArguments(self.uid, self.name)
        try:
            return await async_client.ask(
                self._session.run_directory, "vault_show", asked, SessionView, self._session.deadline
            )
        except NoAnswerError:
            # No such session yet; if there is no guard any more, the limit of the run tells.
            return None

    async def standby_ready(self) -> bool:
        """Return whether a standby could go on at once."""
        seen = await self._ask()
        return seen is not None and any(lease.ready and lease.role is LeaseRole.STANDBY for lease in seen.leases)

    async def read(self) -> CounterReading | None:
        """Return the counter now; None if there is no such session, no writer of it, or nothing counted yet."""
        began = time.monotonic()
        seen = await self._ask()
        return None if seen is None else reading(seen, self._quantity, (began + time.monotonic()) / 2)

    async def watch(self, before: CounterReading | None) -> tuple[CounterReading, CounterReading]:
        """Return two readings, the first once the session goes on from ``before`` and is warm.

        It waits for as long as the session does not go on; the caller has the deadline.
        """
        begun = await self.read()
        while begun is None or (
            before is not None and (begun.generation, begun.count) == (before.generation, before.count)
        ):
            await asyncio.sleep(_LOOK_EVERY)
            begun = await self.read()
        await asyncio.sleep(self._limits.warm_up)
        first = await self.read()
        await asyncio.sleep(self._limits.watched)
        last = await self.read()
        if first is None or last is None:
            raise NotMeasurableError(f"the session {self.name!r} lost its writer while its rate was measured")
        return first, last
