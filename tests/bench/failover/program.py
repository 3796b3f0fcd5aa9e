"""The programs under test: how they are started, with a standby or without, and what they write down."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from mpsguard.vault.wire.address import SOCKET_VARIABLE
from tests.bench.core.client import client_environment
from tests.bench.core.errors import SuiteError
from tests.bench.core.guard import Guard
from tests.harness.guard_process import REPOSITORY

START: Final = 240.0
"""Seconds in which a process must be prepared: PyTorch from a cold disk, a 7B model made of random numbers."""
END: Final = 30.0
_LOOK: Final = 0.01
SLOTS: Final = 4
"""Requests a server works on at a time."""


class Events:
    """The lines a program's processes append to one file, each read once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self._read = 0
        self._rest = b""
        self.all: list[dict[str, Any]] = []

    def look(self) -> list[dict[str, Any]]:
        """All events so far."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            added = file.read()
        self._read += len(added)
        *whole, self._rest = (self._rest + added).split(b"\n")
        self.all += [json.loads(line) for line in whole]
        return self.all

    def wait_for(
        self, name: str, after: int, within: float, alive: Callable[[], str | None], **members: object
    ) -> dict[str, Any]:
        """The first event of that name later than ``after`` (ns) with those members.

        SuiteError if it does not come within so many seconds, or if ``alive`` says why it will not.
        """
        due = time.monotonic() + within
        while True:
            for event in self.look():
                if event["event"] == name and event["ns"] > after and members.items() <= event.items():
                    return event
            trouble = alive()
            if trouble is not None or time.monotonic() > due:
                raise SuiteError(f"{self.path.name}: no {name!r}: {trouble or f'not within {within:g} s'}")
            time.sleep(_LOOK)


class Program:
    """One program, with its events; what is left of it is ended by `close`."""

    def __init__(self, directory: Path, name: str, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self.events = Events(directory / f"{name}.events")
        self._log = directory / f"{name}.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                argv, env=dict(environment), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=REPOSITORY
            )

    def trouble(self) -> str | None:
        """Why nothing more is to be expected of it; None while it runs."""
        code = self.process.poll()
        return None if code is None else f"ended with status {code}; {self.last_words()}"

    def last_words(self) -> str:
        """The end of its log."""
        return " | ".join(self._log.read_text(errors="replace").splitlines()[-6:])[-900:]

    def wait_for(self, name: str, after: int = 0, within: float = START, **members: object) -> dict[str, Any]:
        """See `Events.wait_for`."""
        return self.events.wait_for(name, after, within, self.trouble, **members)

    def close(self) -> None:
        """Ask it to end, then make sure."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(END)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def server_arguments(model: str, session: str, events: Path, mode: str, device: str) -> list[str]:
    """The server's command line."""
    return [
        *(sys.executable, "-m", "examples.llm_server", "--model", model, "--session", session),
        *("--events", str(events), "--mode", mode, "--device", device, "--slots", str(SLOTS)),
    ]


def environment(guard: Guard) -> dict[str, str]:
    """What a program of the suite finds."""
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    return client_environment(guard.pipe_directory) | {"PYTHONPATH": path, SOCKET_VARIABLE: str(guard.vault)}


class WithStandby:
    """A program with a standby, under `mpsguard run`."""

    def __init__(
        self,
        guard: Guard,
        directory: Path,
        name: str,
        command: Sequence[str],
        *,
        at_work: str,
        options: Sequence[str] = (),
    ) -> None:
        """``name`` is its session's too; ``at_work`` the event that only the process writes that works."""
        self.name = name
        self._guard = guard
        self._at_work = at_work
        run = [sys.executable, "-m", "mpsguard.cli.guard", "run", "--config", str(guard.config)]
        # The faults of a run follow each other within seconds.
        run += ["--standby", "1", "--settle", "0"]
        self.program = Program(directory, name, [*run, *options, "--", *command], environment(guard))
        self.events = self.program.events

    def wait_until_guarded(self, since: int = 0) -> None:
        """Wait until one works and a standby is ready, which was started after ``since`` (ns)."""
        if not since:
            self.program.wait_for(self._at_work)
        self.program.wait_for("prepared", since, role="standby")
        due = time.monotonic() + START
        while self._guard.ready_standbys(self.name) < 1:
            if (trouble := self.program.trouble()) or time.monotonic() > due:
                raise SuiteError(f"{self.name}: no standby is ready: {trouble or 'not in time'}")

    def active(self) -> int:
        """The pid of the process that works."""
        return int(next(e["pid"] for e in reversed(self.events.look()) if e["event"] == self._at_work))


class Service(WithStandby):
    """A token server with a standby."""

    def __init__(
        self,
        guard: Guard,
        directory: Path,
        name: str,
        *,
        model: str,
        mode: str,
        device: str,
        options: Sequence[str] = (),
    ) -> None:
        """``options``: further ones for `mpsguard run`."""
        self.address = ("127.0.0.1", _free_port())
        command = server_arguments(model, name, directory / f"{name}.events", mode, device)
        listen = ("--listen", f"127.0.0.1:{self.address[1]}")
        super().__init__(guard, directory, name, command, at_work="first_operation", options=(*listen, *options))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
