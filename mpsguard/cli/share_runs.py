"""A command, run at one share of the SMs after the other: how long it takes, or how fast its session goes on."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import click
import msgspec

from mpsguard.cli.session import CliSession
from mpsguard.control_api import async_client
from mpsguard.control_api.async_client import NoAnswerError
from mpsguard.control_api.messages import classes, end_work, events, vault
from mpsguard.linux.processes import process_tree
from mpsguard.model import ProcessKey
from mpsguard.sizing.procedure import NotMeasurableError
from mpsguard.sizing.rate import CounterReading, checked_run_time, seconds_per_unit
from mpsguard.supervisor.timed_run import RunOutcome, run_once
from mpsguard.vault.address import SOCKET_VARIABLE, socket_path

SHARE_VARIABLE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""A ceiling: a client that sets it never gets more than its class and its lane give."""

_GRACE: Final = 10.0
"""Seconds from SIGTERM to SIGKILL for a run that is ended; enough for a program that saves its state."""

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


class InterruptedRunError(Exception):
    """A signal to this process ended the run."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by signal {number}")
        self.number = number


class RunLimits(msgspec.Struct, frozen=True):
    """How long things take; in seconds."""

    watched: float
    warm_up: float
    """Before a rate is watched."""
    run: float
    """A run at most."""


class _Marked(msgspec.Struct, frozen=True):
    """What the guard's answer says of the requests that a program marks."""

    counts: tuple[int, ...]
    total_seconds: float


class _Counters(msgspec.Struct, frozen=True):
    """What is used of `vault show`."""

    summary: vault.SessionSummary
    sequence: int
    latency: _Marked | None = None


def reading(answer: Any, quantity: Quantity, at: float) -> CounterReading | None:
    """Return the counter in an answer of ``vault show``; None if no process writes there, or nothing was counted."""
    seen = msgspec.convert(answer, _Counters)
    if seen.summary.writer is None:
        return None
    if quantity is Quantity.REQUESTS:
        if seen.latency is None or not any(seen.latency.counts):
            return None
        return CounterReading(at, seen.summary.generation, sum(seen.latency.counts), seen.latency.total_seconds)
    return CounterReading(at, seen.summary.generation, seen.sequence) if seen.sequence else None


class ShareRuns:
    """Runs a command at the shares that are asked for. No process of a run outlives it."""

    def __init__(
        self,
        session: CliSession,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        limits: RunLimits,
        *,
        slip: float,
        quantity: Quantity,
        joins: str | None,
    ) -> None:
        """Prepare the runs.

        Args:
            session: where the guard is.
            arguments: the command.
            environment: its environment, but for the share.
            limits: for each run.
            slip: the difference to be told, as a fraction.
            quantity: what to measure.
            joins: name of the session that the command joins; for a rate.
        """
        self._session = session
        self._arguments = arguments
        self._environment = environment
        self._limits = limits
        self._slip = slip
        self._quantity = quantity
        self._joins = joins

    def warm_up(self, share: float) -> None:
        """Run the command without measuring it: later runs find its files in memory."""
        self._run(share, None)

    def measure(self, share: float) -> float:
        """Return the seconds of a unit of work.

        Raises:
            NotMeasurableError: the command failed, was no client of the guard, or did too little.
            InterruptedRunError: by a signal.
        """
        if self._joins is None:
            return checked_run_time(self._run(share, None).seconds, self._slip)
        watched: list[CounterReading] = []

        async def watch() -> None:
            watched.extend(await self._watch(before))

        before = asyncio.run(self._read())
        outcome = self._run(share, watch)
        if len(watched) < 2:
            raise NotMeasurableError(
                f"{self._arguments[0]} ended with exit code {outcome.exit_code} at a share of {share:g} % before its "
                f"session {self._joins!r} was watched for {self._limits.watched:g} s"
            )
        return seconds_per_unit(watched[0], watched[1], self._slip)

    def _run(self, share: float, watch: Callable[[], Any] | None) -> RunOutcome:
        name, limit = self._arguments[0], self._limits.run
        number = self._last_event()
        environment = {**self._environment, SHARE_VARIABLE: f"{share:g}"}
        run = run_once(
            self._arguments, environment, self._end_work, limit=limit, grace=_GRACE, say=self._say, watch=watch
        )
        try:
            outcome = asyncio.run(run)
        except OSError as error:
            raise NotMeasurableError(f"{name}: {error.strerror or error}") from None
        except NoAnswerError as error:
            raise NotMeasurableError(str(error)) from None
        if outcome.interrupted_by is not None:
            raise InterruptedRunError(outcome.interrupted_by)
        if outcome.out_of_time:
            waited = f"its session {self._joins!r} did not go on for long enough" if watch else "it did not end"
            raise NotMeasurableError(f"{name}: {waited} within {limit:g} s at a share of {share:g} % (--limit)")
        if watch is None and outcome.exit_code != 0:
            raise NotMeasurableError(f"{name} ended with exit code {outcome.exit_code} at a share of {share:g} %")
        self._check_clients(number, share)
        return outcome

    def _last_event(self) -> int:
        past = self._session.ask("events", events.Arguments(), events.EventList).events
        return past[-1].seq if past else 0

    def _check_clients(self, number: int, share: float) -> None:
        """Check that the run was a client of the guard, and that its class does not give less than ``share``."""
        past = self._session.ask("events", events.Arguments(), events.EventList).events
        came = [event for event in past if event.seq > number and event.kind == "client_connected"]
        if not came:
            raise NotMeasurableError(
                f"{self._arguments[0]} was no client of this guard: a share changes nothing for it (it uses no GPU, or "
                "another CUDA_MPS_PIPE_DIRECTORY)"
            )
        named = {event.data.get("service_class") for event in came} - {None}
        if not named:
            return
        for view in self._session.ask("classes", classes.Arguments(), classes.ClassList).classes:
            ceiling = view.settings.sm_share
            if view.settings.name in named and ceiling is not None and share > ceiling:
                raise NotMeasurableError(
                    f"its class {view.settings.name!r} gives {ceiling:g} % at most, so {share:g} % cannot be measured: "
                    f"choose smaller ones (--shares)"
                )

    async def _read(self) -> CounterReading | None:
        assert self._joins is not None
        asked = vault.ShowArguments(os.getuid(), self._joins)
        began = time.monotonic()
        try:
            answer: dict[str, Any] = await async_client.ask(
                self._session.run_directory, "vault_show", asked, dict, self._session.deadline
            )
        except NoAnswerError:
            # No such session yet; if there is no guard any more, the limit of the run tells.
            return None
        return reading(answer, self._quantity, (began + time.monotonic()) / 2)

    async def _watch(self, before: CounterReading | None) -> tuple[CounterReading, CounterReading]:
        """Read the counter twice, once it is that of this run and the session is warm."""
        begun = await self._read()
        while begun is None or (
            before is not None and (begun.generation, begun.count) == (before.generation, before.count)
        ):
            await asyncio.sleep(_LOOK_EVERY)
            begun = await self._read()
        await asyncio.sleep(self._limits.warm_up)
        first = await self._read()
        await asyncio.sleep(self._limits.watched)
        last = await self._read()
        if first is None or last is None:
            raise NotMeasurableError(f"the session {self._joins!r} lost its writer while its rate was measured")
        return first, last

    async def _end_work(self, processes: Sequence[ProcessKey]) -> end_work.EndWorkResult:
        namespace = process_tree.pid_namespace()
        assert namespace is not None
        within = self._session.deadline
        asked = end_work.Arguments(tuple(processes), namespace, within)
        return await async_client.ask(self._session.run_directory, "end_work", asked, end_work.EndWorkResult, within)

    def _say(self, text: str) -> None:
        click.echo(f"mpsguard-ctl rightsize: {text}", err=True)


def environment_for(public: str, run_directory: str) -> dict[str, str]:
    """Return this process' environment, for a program under the guard.

    It has the pipe directory of the domain, or of the class in it that the caller's own names, and the vault's socket.
    """
    named = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "")
    inside = named == public or named.startswith(f"{public.rstrip('/')}/")
    vault_socket = os.environ.get(SOCKET_VARIABLE) or str(socket_path(run_directory))
    return {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": named if inside else public, SOCKET_VARIABLE: vault_socket}
