"""A session that runs already, moved from share to share by live resizes while its rate is measured."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from mpsguard.cli.session import CliSession
from mpsguard.cli.session_rate import RunLimits, SessionRate
from mpsguard.sizing.procedure import NotMeasurableError
from mpsguard.sizing.rate import CounterReading, seconds_per_unit

Resize = Callable[[float], Any]
"""Gives the session another share, in percent; returns once it goes on there."""

_LOOK_EVERY: Final = 0.1
"""Seconds between two looks for a standby: a look costs the guard less than a millisecond."""


class _ResizeRequest(msgspec.Struct, frozen=True):
    """Arguments of the control request ``resize``."""

    uid: int
    session: str
    share: float


def live_resize(session: CliSession, uid: int, name: str, within: float) -> Resize:
    """Return what gives the session ``name`` of user ``uid`` another share, within so many seconds."""

    def resize(share: float) -> None:
        session.ask("resize", _ResizeRequest(uid, name, share), dict[str, Any], after=within)

    return resize


class RunningSession:
    """Measures a session at the shares that are asked for; owns its share until it is closed."""

    def __init__(
        self,
        rate: SessionRate,
        resize: Resize,
        limits: RunLimits,
        *,
        slip: float,
        rest: float,
    ) -> None:
        """Prepare the measurement.

        Args:
            rate: of the session.
            resize: gives it another share.
            limits: for each share.
            slip: the difference to be told, as a fraction.
            rest: the share that it has afterwards, in percent.
        """
        self._rate = rate
        self._resize = resize
        self._limits = limits
        self._slip = slip
        self._rest = rest
        self._share: float | None = None
        """What it was given last; None before it was given any."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give the session the share that it is to have afterwards."""
        if self._share is not None and self._share != self._rest:
            self._give(self._rest)

    def measure(self, share: float) -> float:
        """Return the seconds of a unit of work; NotMeasurableError if it has no standby, or does too little."""
        if share != self._share:
            self._give(share)
        first, last = asyncio.run(self._watched(share))
        return seconds_per_unit(first, last, self._slip)

    def _give(self, share: float) -> None:
        asyncio.run(self._standby_ready())
        self._resize(share)
        self._share = share

    async def _watched(self, share: float) -> tuple[CounterReading, CounterReading]:
        limit = self._limits.run
        try:
            async with asyncio.timeout(limit):
                return await self._rate.watch(await self._rate.read())
        except TimeoutError:
            raise NotMeasurableError(
                f"the session {self._rate.name!r} did not go on for long enough within {limit:g} s at a share of "
                f"{share:g} % (--limit)"
            ) from None

    async def _standby_ready(self) -> None:
        limit = self._limits.run
        try:
            async with asyncio.timeout(limit):
                ready = await self._rate.standby_ready()
                while not ready:
                    await asyncio.sleep(_LOOK_EVERY)
                    ready = await self._rate.standby_ready()
        except TimeoutError:
            raise NotMeasurableError(
                f"the session {self._rate.name!r} had no standby that is ready within {limit:g} s (--limit): a resize "
                "hands it on to its standby"
            ) from None
