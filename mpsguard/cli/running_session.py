"""A session that runs already, moved from share to share by live resizes while its rate is measured."""

import asyncio
from types import TracebackType
from typing import Final, Self

from mpsguard.cli.session import CliSession
from mpsguard.cli.session_rate import RunLimits, SessionRate
from mpsguard.guard.control_api import async_client, protocol
from mpsguard.guard.control_api.async_client import NoAnswerError
from mpsguard.guard.control_api.messages.vault import ResizeArguments, Resized
from mpsguard.guard.sizing.procedure import NotMeasurableError
from mpsguard.guard.sizing.rate import CounterReading, seconds_per_unit

_LOOK_EVERY: Final = 0.1
"""Seconds between two looks for a standby: a look costs the guard less than a millisecond."""


class RunningSession:
    """Measures a session at the shares that are asked for, and gives it its own share back when it is closed."""

    def __init__(self, session: CliSession, rate: SessionRate, limits: RunLimits, *, slip: float, rest: float) -> None:
        """Prepare the measurement.

        Args:
            session: where the guard is.
            rate: of the session that runs.
            limits: for each share.
            slip: the difference to be told, as a fraction.
            rest: the share that it has afterwards, in percent.
        """
        self._session = session
        self._rate = rate
        self._limits = limits
        self._slip = slip
        self._rest = rest
        self._share: float | None = None
        """What it was asked to have last; None before it was asked."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.close()
        except NotMeasurableError as failure:
            if error is None:
                raise
            # A refusal that comes twice is told once.
            if str(failure) == str(error):
                return
            before = str(error) if isinstance(error, NotMeasurableError) else "interrupted"
            left = f"its share of {self._rest:g} % was not put back: {failure}"
            raise NotMeasurableError(f"{before}; {left}") from error

    def close(self) -> None:
        """Give the session the share that it is to have afterwards; NotMeasurableError if that fails."""
        if self._share not in (None, self._rest):
            asyncio.run(self._resize(self._rest))

    def measure(self, share: float) -> float:
        """Return the seconds of a unit of work; NotMeasurableError if it cannot be resized, or does too little."""
        first, last = asyncio.run(self._measured(share))
        return seconds_per_unit(first, last, self._slip)

    async def _measured(self, share: float) -> tuple[CounterReading, CounterReading]:
        if share != self._share:
            await self._resize(share)
        limit = self._limits.run
        try:
            async with asyncio.timeout(limit):
                # The start of the next standby takes time from the session.
                ready = await self._rate.standby_ready()
                while not ready:
                    await asyncio.sleep(_LOOK_EVERY)
                    ready = await self._rate.standby_ready()
                return await self._rate.watch(await self._rate.read())
        except TimeoutError:
            raise NotMeasurableError(
                f"the session {self._rate.name!r} had no new standby, or did not go on for long enough, within "
                f"{limit:g} s at a share of {share:g} % (--limit)"
            ) from None

    async def _resize(self, share: float) -> None:
        # Also if it fails: the share may hold for the program's next process.
        self._share = share
        asked = ResizeArguments(self._rate.name, share, self._rate.uid)
        within = min(self._limits.run, protocol.MAX_DEADLINE)
        try:
            await async_client.ask(self._session.run_directory, "resize", asked, Resized, within)
        except NoAnswerError as error:
            raise NotMeasurableError(f"resize: {error}") from None
