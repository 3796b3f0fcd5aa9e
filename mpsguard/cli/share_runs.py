"""A command, run at one share of the SMs after the other: how long it takes, or how fast its session goes on."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

from mpsguard.cli.ended_work import end_work_by
from mpsguard.cli.session import CliSession
from mpsguard.cli.session_rate import RunLimits, SessionRate
from mpsguard.guard.control_api.async_client import NoAnswerError
from mpsguard.guard.control_api.messages.guard import EventList
from mpsguard.guard.control_api.messages.lanes import ClassesArguments, ClassList
from mpsguard.guard.control_api.protocol import Event, NoArguments
from mpsguard.guard.sizing.procedure import NotMeasurableError
from mpsguard.guard.sizing.rate import CounterReading, checked_run_time, seconds_per_unit
from mpsguard.vault.supervisor.timed_run import RunOutcome, run_once
from mpsguard.vault.wire.address import SOCKET_VARIABLE, socket_path

SHARE_VARIABLE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""A ceiling: a client that sets it never gets more than its class and its lane give."""

_GRACE: Final = 10.0
"""Seconds from SIGTERM to SIGKILL for a run that is ended; enough for a program that saves its state."""

_ENTERED_WITHIN: Final = 5.0
"""Seconds after a run in which the guard tells of its client: it reads the client's /proc entries first, which may take
three (`process_reader`), and a run may be over before."""

_AGAIN: Final = 0.1


class InterruptedRunError(Exception):
    """A signal to this process ended the run."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by signal {number}")
        self.number = number


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
        rate: SessionRate | None,
    ) -> None:
        """Prepare the runs.

        Args:
            session: where the guard is.
            arguments: the command.
            environment: its environment, but for the share.
            limits: for each run.
            slip: the difference to be told, as a fraction.
            rate: of the session that the command joins; None: the run time is measured.
        """
        self._session = session
        self._arguments = arguments
        self._environment = environment
        self._limits = limits
        self._slip = slip
        self._rate = rate

    def warm_up(self, share: float) -> None:
        """Run the command without measuring it: later runs find its files in memory."""
        self._run(share, None)

    def measure(self, share: float) -> float:
        """Return the seconds of a unit of work.

        Raises:
            NotMeasurableError: the command failed, was no client of the guard, or did too little.
            InterruptedRunError: by a signal.
        """
        rate = self._rate
        if rate is None:
            return checked_run_time(self._run(share, None).seconds, self._slip)
        watched: list[CounterReading] = []

        async def watch() -> None:
            watched.extend(await rate.watch(before))

        before = asyncio.run(rate.read())
        outcome = self._run(share, watch)
        if len(watched) < 2:
            raise NotMeasurableError(
                f"{self._arguments[0]} ended with exit code {outcome.exit_code} at a share of {share:g} % before its "
                f"session {rate.name!r} was watched for {self._limits.watched:g} s"
            )
        return seconds_per_unit(watched[0], watched[1], self._slip)

    def _run(self, share: float, watch: Callable[[], Any] | None) -> RunOutcome:
        name, limit = self._arguments[0], self._limits.run
        number = self._last_event()
        environment = {**self._environment, SHARE_VARIABLE: f"{share:g}"}
        end_work = end_work_by(self._session.run_directory, self._session.deadline)
        run = run_once(self._arguments, environment, end_work, limit=limit, grace=_GRACE, say=self._say, watch=watch)
        try:
            outcome = asyncio.run(run)
        except OSError as error:
            raise NotMeasurableError(f"{name}: {error.strerror or error}") from None
        except NoAnswerError as error:
            raise NotMeasurableError(str(error)) from None
        if outcome.interrupted_by is not None:
            raise InterruptedRunError(outcome.interrupted_by)
        if outcome.out_of_time:
            rate = self._rate
            waited = "it did not end" if rate is None else f"its session {rate.name!r} did not go on for long enough"
            raise NotMeasurableError(f"{name}: {waited} within {limit:g} s at a share of {share:g} % (--limit)")
        if watch is None and outcome.exit_code != 0:
            raise NotMeasurableError(f"{name} ended with exit code {outcome.exit_code} at a share of {share:g} %")
        self._check_clients(number, share)
        return outcome

    def _last_event(self) -> int:
        past = self._session.ask("events", NoArguments(), EventList).events
        return past[-1].seq if past else 0

    def _clients_after(self, number: int) -> list[Event]:
        past = self._session.ask("events", NoArguments(), EventList).events
        return [event for event in past if event.seq > number and event.kind == "client_connected"]

    def _check_clients(self, number: int, share: float) -> None:
        """Check that the run was a client of the guard, and that its class does not give less than ``share``."""
        due = time.monotonic() + _ENTERED_WITHIN
        while not (came := self._clients_after(number)) and time.monotonic() < due:
            time.sleep(_AGAIN)
        if not came:
            raise NotMeasurableError(
                f"{self._arguments[0]} was no client of this guard: a share changes nothing for it (it uses no GPU, or "
                "another CUDA_MPS_PIPE_DIRECTORY)"
            )
        named = {event.data.get("service_class") for event in came} - {None}
        if not named:
            return
        for view in self._session.ask("classes", ClassesArguments(), ClassList).classes:
            ceiling = view.settings.sm_share
            if view.settings.name in named and ceiling is not None and share > ceiling:
                raise NotMeasurableError(
                    f"its class {view.settings.name!r} gives {ceiling:g} % at most, so {share:g} % cannot be measured: "
                    f"choose smaller ones (--shares)"
                )

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
