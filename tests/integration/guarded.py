"""A guard as a real process, over a real lane, in a directory of its own: what the integration tests stand on."""

import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import msgspec
import zmq

from mpsguard.guard.control_api import protocol
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import procfs
from tests.harness.guard_config import GuardFile
from tests.harness.guard_process import REPOSITORY, GuardProcess
from tests.harness.leftovers import end_all
from tests.harness.waiting import PATIENCE, wait_for
from tests.integration.ctl_in_process import document_of

SIMULATED = REPOSITORY / "fault_injection" / "sim" / "bin" / "nvidia-cuda-mps-control"


def is_running(process: ProcessKey) -> bool:
    """Whether this very process exists and is not a zombie."""
    try:
        return procfs.process_key(process.pid) == process and procfs.state(process.pid) not in (None, "Z", "X")
    except ProcessLookupError:
        return False


def descriptors(pid: int) -> int:
    """How many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def no_more_descriptors(pid: int, before: int) -> None:
    """Wait until a process has no more open than ``before``; fails if it never does.

    Not at once: ZeroMQ closes the connection of a peer that was answered and has gone on a thread of its own.
    """
    wait_for(f"no more descriptors of process {pid} than before", lambda: descriptors(pid) <= before)


class Program:
    """A child that prints a JSON document a line; ended at the latest when the test is over."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str], **more: Any) -> None:
        self.process = subprocess.Popen(
            arguments, env=dict(environment), cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more
        )
        self._read = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def next(self, deadline: float = PATIENCE) -> dict[str, Any]:
        """The next document; fails if the program ends or says nothing in time."""
        assert self.process.stdout is not None
        due = time.monotonic() + deadline
        while b"\n" not in self._read:
            if not select.select([self.process.stdout], [], [], max(0, due - time.monotonic()))[0]:
                raise TimeoutError(f"process {self.pid} said nothing for {deadline:g} s")
            added = os.read(self.process.stdout.fileno(), 4096)
            if not added:
                raise EOFError(f"process {self.pid} ended with {self.wait()}: {self._read!r}")
            self._read += added
        line, _, self._read = self._read.partition(b"\n")
        document: dict[str, Any] = json.loads(line)
        return document

    def expect(self, *events: str) -> dict[str, Any]:
        """The next document that tells one of ``events``; the last one."""
        while (document := self.next())["event"] not in events:
            pass
        return document

    def silent(self, seconds: float = 0.3) -> bool:
        """Whether the program says nothing for a while: that it waits can be seen in no other way."""
        assert self.process.stdout is not None
        return not self._read and not select.select([self.process.stdout], [], [], seconds)[0]

    def wait(self) -> int:
        """The exit status."""
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


class Guarded:
    """One guard, its lanes and its clients; `close` ends them all."""

    def __init__(
        self,
        control: Path = SIMULATED,
        *,
        domain: str = "",
        settings: str = "",
        policy: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        # Short: a socket's path has at most 107 bytes.
        self.root = Path(tempfile.mkdtemp(prefix="mg-"))
        self.root.chmod(0o755)
        self.run_directory = self.root / "run"
        self.public = self.root / "mps"
        self.pipe = self.run_directory / "lanes" / "default-0" / "pipe"
        self.log = self.root / "log" / "default-0"
        self.control = control
        self.config = self.root / "mpsguard.toml"
        self.environment = {**os.environ, **(environment or {}), "CUDA_MPS_PIPE_DIRECTORY": str(self.public)}
        self.write_config(domain=domain, settings=settings, policy=policy)
        self.process = GuardProcess(self.config, self.root)
        self._programs: list[Program] = []

    def write_config(self, *, domain: str = "", settings: str = "", policy: str = "") -> None:
        tables = {"domain.settings": settings, "domain.policy": policy}
        self.config.write_text(GuardFile(self.root, self.public, self.control, domain=domain, tables=tables).text())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def guard(self) -> subprocess.Popen[bytes]:
        """The guard that was started last."""
        return self.process.popen

    def hold_sockets(self) -> None:
        """Hold the public sockets as the service manager does, from now on."""
        self.process.hold_sockets(self.public)

    def start(self, *, ready: bool = True) -> int:
        """Start a guard and wait for its READY=1; its pid."""
        return self.process.start(self.environment, ready=ready)

    def kill(self) -> None:
        """SIGKILL the guard, and no other process."""
        self.process.kill()

    def stop(self) -> int:
        """End the guard in order; its exit status."""
        return self.process.stop()

    def ctl(self, *arguments: str, deadline: float = 10.0) -> subprocess.CompletedProcess[str]:
        """Run mpsguard-ctl."""
        program = [sys.executable, "-m", "mpsguard.cli.ctl", "--run-directory", str(self.run_directory)]
        return subprocess.run(
            [*program, "--deadline", str(deadline), *arguments],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=PATIENCE + deadline,
            check=False,
        )

    def json(self, name: str, *arguments: str, deadline: float = 10.0) -> Any:
        """What a command of mpsguard-ctl answers with --json. It runs in this process; `ctl` starts one."""
        return document_of(str(self.run_directory), name, *arguments, deadline=deadline)

    def asked(self, command: str) -> Any:
        """What the guard's API answers: what a command of mpsguard-ctl prints, without half a second to start it."""
        path = protocol.api_socket(str(self.run_directory))
        with socket.socket(socket.AF_UNIX) as probe:
            # ZeroMQ would wait for a listener there.
            probe.connect(str(path))
        with zmq.Context() as context, context.socket(zmq.REQ) as asking:
            asking.setsockopt(zmq.LINGER, 0)
            asking.connect(f"ipc://{path}")
            asking.send(msgspec.json.encode(protocol.Request(protocol.VERSION, command)))
            assert asking.poll(int(PATIENCE * 1000)), f"no answer to {command!r} within {PATIENCE:g} s"
            reply = msgspec.json.decode(asking.recv(), type=protocol.Reply)
        assert reply.error is None, reply.error
        return reply.result

    def lane(self) -> dict[str, Any]:
        """The lane's report."""
        report: dict[str, Any] = self.asked("lanes")["lanes"][0]
        return report

    def lane_in(self, *states: str) -> dict[str, Any]:
        """The lane's report once it is in one of ``states``."""
        return wait_for(f"lane in {states}", lambda: report if (report := self.lane())["state"] in states else None)

    def clients(self) -> list[dict[str, Any]]:
        """The clients the guard knows."""
        found: list[dict[str, Any]] = self.asked("clients")["clients"]
        return found

    def clients_of(self, *pids: int) -> dict[int, dict[str, Any]]:
        """These clients by pid, once the guard lists them and no other.

        A program may say that it is connected while the guard still reads its entries in /proc.
        """
        found: dict[int, dict[str, Any]] = {}

        def listed() -> bool:
            found.clear()
            found.update((client["process"]["pid"], client) for client in self.clients())
            return set(found) == set(pids)

        wait_for(f"clients {pids}", listed)
        return found

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Past events of one kind, oldest first."""
        return [event for event in self.asked("events")["events"] if event["kind"] == kind]

    def metric(self, name: str, **labels: str) -> float:
        """The present value of all series with these labels together; 0 if there is none yet."""
        found = 0.0
        for line in self.asked("metrics")["text"].splitlines():
            series, _, value = line.rpartition(" ")
            if series.split("{")[0] == name and all(f'{key}="{label}"' in series for key, label in labels.items()):
                found += float(value)
        return found

    def ui(self, *lines: str, pipe_directory: Path | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
        """Type ``lines`` into the control daemon's own command line, in the public directory unless told otherwise."""
        environment = {**self.environment, "CUDA_MPS_PIPE_DIRECTORY": str(pipe_directory or self.public)}
        return subprocess.run(
            [str(self.control)],
            input="".join(f"{line}\n" for line in lines),
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            **more,
        )

    def client(self, *arguments: str, **more: Any) -> Program:
        """Start a simulated CUDA program against the public directory."""
        return self.program([sys.executable, "-m", "fault_injection.sim.client", *arguments], **more)

    def program(self, arguments: list[str], **more: Any) -> Program:
        """Start any program against the public directory; it is ended with this guard at the latest."""
        self._programs.append(Program(arguments, self.environment, **more))
        return self._programs[-1]

    def close(self) -> None:
        """End programs, guard and lanes, which outlive it by design, and whatever else was started for this guard."""
        for program in self._programs:
            program.close()
        if self.process.runs:
            self.kill()
        self.process.close()
        # The simulated daemons have nothing to give back; a command for each costs more than their end.
        for pipe in (self.run_directory / "lanes").glob("*/pipe") if self.control != SIMULATED else ():
            if (pipe / "control").exists():
                self.ui("quit -t 1", pipe_directory=pipe)
        end_all(self.root)
        shutil.rmtree(self.root, ignore_errors=True)
