"""Client programs as children of the suite: started, listened to, and ended on every path."""

import os
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from tests.bench.core.errors import SuiteError
from tests.bench.core.events import Event, Outcome, parse_event
from tests.bench.core.stop import uninterrupted

PATIENCE: Final = 120.0
"""Seconds a client may take to start or to end; importing PyTorch from a cold disk is the slowest of all."""

_REST: Final = 5.0
"""Seconds for the rest of an ended client's output, which a process that it left behind can hold open."""


def client_environment(pipe_directory: os.PathLike[str]) -> dict[str, str]:
    """This process's environment, its MPS variables replaced by the one a user sets."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_MPS_")}
    environment["CUDA_MPS_PIPE_DIRECTORY"] = os.fspath(pipe_directory)
    return environment


class Client:
    """One running program that prints events; its standard input is the suite's."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], label: str) -> None:
        self.label = label
        self._events: list[Event] = []
        self._noise: deque[str] = deque(maxlen=20)
        self._changed = threading.Condition()
        self._closed = False
        self._process = subprocess.Popen(
            argv,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, name=f"events of {label}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id, good until `finish` or `end` returned."""
        return self._process.pid

    def wait_for(self, name: str, timeout: float = PATIENCE, *, after: float = 0.0) -> Event:
        """The first event of that name later than `after` (monotonic seconds).

        SuiteError if the program ends without it, TimeoutError if it does not come within `timeout` seconds.
        """

        def found() -> Event | None:
            return next((e for e in self._events if e.name == name and e.monotonic > after), None)

        with self._changed:
            if not self._changed.wait_for(lambda: found() or self._closed, timeout):
                raise TimeoutError(f"client {self.label}: no {name!r} within {timeout:g} s")
            event = found()
        if event is None:
            raise SuiteError(f"no {name!r}: {self.finish().describe()}")
        return event

    def seen(self, name: str) -> Event | None:
        """The first event of that name if it has come by now."""
        with self._changed:
            return next((event for event in self._events if event.name == name), None)

    def all_seen(self, name: str) -> list[Event]:
        """All events of that name that have come by now."""
        with self._changed:
            return [event for event in self._events if event.name == name]

    def ended_with(self) -> int | None:
        """Its exit status if it has ended by now; a signal is negative."""
        return self._process.poll()

    def go(self) -> None:
        """Release a client started with --controlled."""
        self.say("go")

    def say(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it died first: its outcome says so
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def stop(self) -> None:
        """Ask a client started with --controlled to end its loop now."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def finish(self, timeout: float = PATIENCE) -> Outcome:
        """Wait for the end; SuiteError if it does not come within `timeout` seconds (the client is killed then)."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.end(grace=0.0)
            raise SuiteError(f"client {self.label} did not end within {timeout:g} s") from None
        self._reader.join(_REST)
        self.stop()
        if self._reader.is_alive():
            raise SuiteError(f"client {self.label} ended; a process that it started still holds its output")
        return Outcome(self.label, self.pid, self._process.returncode, tuple(self._events), tuple(self._noise))

    def end(self, grace: float = 5.0) -> None:
        """Make sure that it has ended: ask, SIGTERM, SIGKILL, with `grace` seconds after each; 0: SIGKILL at once.

        SIGTERM because a client can be `mpsguard run`, which ends its program then; SIGKILL would leave the program.
        """
        self.stop()
        # A child not yet reaped: its pid is its own.
        for next_step in (self._process.terminate, self._process.kill) if grace else (self._process.kill,):
            try:
                self._process.wait(grace)
            except subprocess.TimeoutExpired:
                next_step()
        self._process.wait()
        self._reader.join(_REST)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                event = parse_event(line)
                with self._changed:
                    if event is None:
                        self._noise.append(line.rstrip())
                    else:
                        self._events.append(event)
                    self._changed.notify_all()
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Clients:
    """The clients of one measurement; leaving the block ends those that still run."""

    def __init__(self) -> None:
        self._started: list[Client] = []

    def start(
        self,
        argv: Sequence[str],
        pipe_directory: os.PathLike[str],
        label: str,
        variables: Mapping[str, str] | None = None,
    ) -> Client:
        """Start one, with further environment variables if there are any."""
        with uninterrupted():
            client = Client(argv, client_environment(pipe_directory) | dict(variables or {}), label)
            self._started.append(client)
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._started:
            client.stop()
        for client in self._started:
            client.end()
