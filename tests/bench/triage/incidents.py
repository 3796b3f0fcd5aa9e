"""The guard's incidents as a client of it sees them: the event stream, and the list it answers with."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec
import zmq

from mpsguard.guard.control_api import protocol
from tests.bench.triage.verdict import Report, report

_PATIENCE: Final = 10.0
_REPOSITORY: Final = Path(__file__).resolve().parents[3]


class Incidents:
    """Listens to one guard from now on. `missing` says why there are no incidents to hear of, or is empty."""

    def __init__(self, run_directory: Path) -> None:
        self._run = run_directory
        self._context = zmq.Context()
        self._events = self._context.socket(zmq.SUB)
        self._events.setsockopt(zmq.SUBSCRIBE, b"")
        self._events.connect(f"ipc://{protocol.events_socket(str(run_directory))}")
        self._heard: list[Report] = []
        listed = self._ask("incidents")
        self.missing = listed if isinstance(listed, str) else ""
        self._before = {each.id for each in _rows(listed)}

    def begin(self) -> None:
        """Forget what came so far: the next incidents are the next cell's."""
        self._hear()
        self._before |= {each.id for each in self._heard} | {each.id for each in self.listed()}
        self._heard.clear()

    def published(self) -> list[Report]:
        """Events of incidents since `begin`, oldest first."""
        self._hear()
        return [each for each in self._heard if each.id not in self._before]

    def listed(self) -> list[Report]:
        """The incidents since `begin`, as they stand now."""
        return [] if self.missing else [each for each in _rows(self._ask("incidents")) if each.id not in self._before]

    def detailed(self, incident: str) -> Report | None:
        """One incident with its evidence."""
        return report(self.export(incident))

    def export(self, incident: str) -> dict[str, Any] | None:
        """`mpsguard-ctl incident export ID`: the bundle that replays; None if the guard does not give one."""
        command = [sys.executable, "-m", "mpsguard.cli.ctl", "--run-directory", str(self._run), "--json"]
        path = os.pathsep.join(filter(None, [str(_REPOSITORY), os.environ.get("PYTHONPATH")]))
        try:
            done = subprocess.run(
                [*command, "incident", "export", incident],
                env=os.environ | {"PYTHONPATH": path},
                capture_output=True,
                text=True,
                timeout=_PATIENCE,
                check=False,
            )
            bundle = json.loads(done.stdout)
        except (subprocess.TimeoutExpired, ValueError):
            return None
        return bundle if isinstance(bundle, dict) else None

    def close(self) -> None:
        """Hang up."""
        self._context.destroy(linger=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _hear(self) -> None:
        while self._events.poll(0):
            message = self._events.recv_multipart()
            try:
                event = json.loads(message[-1])
            except ValueError:
                continue
            if isinstance(event, dict) and event.get("kind") == "incident" and (each := report(event.get("data"))):
                self._heard.append(each)

    def _ask(self, command: str) -> object:
        """The result of a request to the API, or why there is none, as text."""
        request = protocol.Request(protocol.VERSION, command, deadline=_PATIENCE)
        socket = self._context.socket(zmq.REQ)
        try:
            socket.connect(f"ipc://{protocol.api_socket(str(self._run))}")
            socket.send(msgspec.json.encode(request))
            if not socket.poll(int(_PATIENCE * 1000)):
                return f"the guard did not answer {command!r} within {_PATIENCE:g} s"
            reply = msgspec.json.decode(socket.recv(), type=protocol.Reply)
        finally:
            socket.close(linger=0)
        return f"{reply.error.code}: {reply.error.message}" if reply.error else reply.result


def _rows(result: object) -> list[Report]:
    rows = result.get("incidents") if isinstance(result, dict) else result
    return [each for row in rows if (each := report(row))] if isinstance(rows, list) else []


def wait_until(condition: Callable[[], bool], limit: float, *, every: float = 0.005) -> bool:
    """Look `every` so many seconds until it holds or the clock (monotonic) reads `limit`."""
    while not condition():
        if time.monotonic() >= limit:
            return False
        time.sleep(every)
    return True
