"""The guard under test: `mpsguard serve` with a configuration of this run's own, in private directories."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from mpsguard.guard.control_api.messages.clients import ClientMoved, Watch
from mpsguard.guard.control_api.messages.clients import TerminateResult as Terminated
from mpsguard.guard.control_api.messages.guard import SensorStatus
from mpsguard.guard.control_api.messages.vault import LeaseView, Resized
from mpsguard.guard.model import Client, LaneReport, Lifeline
from mpsguard.vault.wire.address import socket_path
from mpsguard.vault.wire.region import LeaseRole
from tests.bench.core.control_ui import ControlUi
from tests.bench.core.errors import SuiteError
from tests.bench.core.stock import quit_daemon
from tests.harness.guard_config import GuardFile
from tests.harness.guard_process import REPOSITORY, GuardProcess, GuardStartError
from tests.harness.leftovers import end_all


@dataclass(frozen=True)
class Options:
    """What a measurement wants of the guard beyond its defaults."""

    sentinel: bool = False
    core_directory: Path | None = None
    crash_hold: float | None = None
    exit_hold: float | None = None
    """Seconds, of `[domain.lifelines]`."""
    terminate: bool = False
    """Whether the proven culprit of a memory fault is ended."""
    standby: bool = False
    """Whether there is a second lane."""
    host_memory: bool = False
    """Whether regions of the vault may lie in the host's memory."""
    gpus: tuple[str, ...] = ()
    """UUIDs, or none: all."""
    address: str = "off"
    """Of HTTP."""
    simulated_driver: bool = False
    """Whether the guard has lifelines of simulated programs, where the control daemon is simulated."""
    classes: Mapping[str, str] = field(default_factory=dict)
    """Service classes: by name, what each gives, as in an inline table of TOML; any program may choose them."""

    def guard_file(self, root: Path, control: str) -> GuardFile:
        """The configuration."""
        domain = ["sentinel = true"] if self.sentinel else []
        domain += ["standby = true"] if self.standby else []
        domain += [f"gpus = {json.dumps(self.gpus)}"] if self.gpus else []
        if self.classes:
            classes = [f'{{ name = "{name}", choosers = "anyone", {given} }}' for name, given in self.classes.items()]
            domain += ["multiuser = true", f"class = [{', '.join(classes)}]"]
        holds = {"crash_hold": self.crash_hold, "exit_hold": self.exit_hold}
        tables = {
            "domain.lifelines": "\n".join(f"{key} = {value:g}" for key, value in holds.items() if value is not None)
        }
        if self.terminate:
            tables["domain.remedies"] = 'mmu = [{ remedy = "terminate", mode = "enforce" }]'
        if self.host_memory:
            tables["vault"] = "simulated = true"
        simulated = Path(control).resolve().is_relative_to(REPOSITORY / "fault_injection")
        guard = [f'core_directory = "{self.core_directory}"'] if self.core_directory else []
        guard += ["simulated_driver = true"] if self.simulated_driver and simulated else []
        return GuardFile(
            root,
            root / "pub",
            Path(control),
            simulated=simulated,
            name="suite",
            address=self.address,
            guard="\n".join(guard),
            domain="\n".join(domain),
            tables=tables,
        )


T = TypeVar("T")

_MOVED: Final = 100.0
"""Seconds in which a program must have moved, or said that it does not."""
_RESIZED: Final = 330.0
"""Seconds in which a session must have another share: its next standby starts meanwhile."""


class Guard:
    """One guard: its process comes and goes (`start`, `kill`), its lane stays until the block ends."""

    name = "guard"

    def __init__(self, control: str, root: Path, options: Options) -> None:
        self.pipe_directory = root / "pub"
        self.ui = ControlUi(control, self.pipe_directory)
        self._root = root
        self._control = control
        root.mkdir(parents=True)
        self.config = root / "mpsguard.toml"
        self.config.write_text(options.guard_file(root, control).text())
        self._process = GuardProcess(self.config, root)

    @property
    def vault(self) -> Path:
        """The vault's socket."""
        return socket_path(self._root / "run")

    @property
    def state_directory(self) -> Path:
        """Where the guard keeps its journal."""
        return self._root / "state"

    @property
    def pid(self) -> int:
        """The running guard's pid."""
        return self._process.popen.pid

    def hold_sockets(self) -> None:
        """Hold the public sockets from outside, as `mpsguard.socket` does, so that they survive the guard."""
        self._process.hold_sockets(self.pipe_directory)

    def start(self) -> None:
        """Start the process and wait until it says that it is ready; SuiteError with its last words if it is not."""
        try:
            self._process.start(_environment())
        except GuardStartError as error:
            raise SuiteError(str(error)) from None

    def kill(self) -> None:
        """SIGKILL; returns once the process is gone."""
        self._process.kill()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if it does not end; safe when none runs."""
        self._process.end()

    def close(self) -> None:
        """End the guard, then its lanes, which outlive it by design."""
        try:
            self._process.close()
        finally:
            for pipe in (self._root / "run" / "lanes").glob("*/pipe"):
                quit_daemon(ControlUi(self._control, pipe), pipe)
            end_all(self._root)

    def lanes(self) -> list[LaneReport]:
        """What `mpsguard-ctl --json lanes` says."""
        return self._ask("lanes", LaneReport)

    def clients(self) -> list[Client]:
        """What `mpsguard-ctl --json clients` says."""
        return self._ask("clients", Client)

    def watches(self) -> list[Watch]:
        """What the same says of how each is watched."""
        return self._ask("clients", Watch, "watches")

    def sensors(self) -> list[SensorStatus]:
        """What `mpsguard-ctl --json status` says of the sensors."""
        return self._ask("status", SensorStatus, "sensors")

    def has_sentinel(self) -> bool:
        """Whether a sentinel stands on its lane."""
        return any(each.present for each in self.sensors() if each.name.startswith("sentinel "))

    def lifelines(self) -> list[Lifeline]:
        """What `mpsguard-ctl --json lifelines` says."""
        return self._ask("lifelines", Lifeline)

    def terminate(self, pid: int) -> Terminated:
        """`mpsguard-ctl --json terminate PID`: what it answered; SuiteError if it did not."""
        done = self._control_command("terminate", str(pid))
        try:
            return msgspec.json.decode(done.stdout, type=Terminated)
        except msgspec.MsgspecError:
            raise SuiteError(f"mpsguard-ctl terminate: status {done.returncode}; {done.stderr[-300:]}") from None

    def reload(self) -> None:
        """`mpsguard-ctl reload`; SuiteError if it failed."""
        done = self._control_command("reload")
        if done.returncode != 0:
            raise SuiteError(f"mpsguard-ctl reload: status {done.returncode}; {done.stderr[-300:]}")

    def resize(self, session: str, share: float) -> Resized:
        """`mpsguard-ctl --json resize`: what it answered; SuiteError if it did not."""
        done = self._control_command("resize", session, "--share", f"{share:g}", timeout=_RESIZED)
        try:
            return msgspec.json.decode(done.stdout, type=Resized)
        except msgspec.MsgspecError:
            raise SuiteError(f"mpsguard-ctl resize: status {done.returncode}; {done.stdout[-300:]}") from None

    def move(self, pid: int, *, close_old: bool = False) -> ClientMoved:
        """`mpsguard-ctl --json move PID`: what it answered; SuiteError with its words if the program stays."""
        return self._moved("move", str(pid), *(["--close-old"] if close_old else []))

    def resize_program(self, pid: int, share: float, *, close_old: bool = False) -> ClientMoved:
        """`mpsguard-ctl --json resize PID --share`, likewise."""
        more = ["--close-old"] if close_old else []
        return self._moved("resize", str(pid), "--share", f"{share:g}", *more)

    def _moved(self, *words: str) -> ClientMoved:
        done = self._control_command(*words, timeout=_MOVED)
        try:
            return msgspec.json.decode(done.stdout, type=ClientMoved)
        except msgspec.MsgspecError:
            raise SuiteError(f"mpsguard-ctl {words[0]}: {(done.stdout + done.stderr)[-300:]}") from None

    def lane_ui(self, name: str) -> ControlUi:
        """The vendor's command line on a lane's private directory, past the guard."""
        found = next(lane for lane in self.lanes() if lane.name == name)
        return ControlUi(self._control, Path(found.pipe_directory))

    def ready_standbys(self, session: str) -> int:
        """How many standbys of one of our sessions are ready."""
        done = self._control_command("vault", "show", str(os.getuid()), session)
        try:
            leases = msgspec.convert(json.loads(done.stdout)["leases"], list[LeaseView])
        except (ValueError, KeyError, msgspec.ValidationError):
            # There is no such session yet.
            return 0
        return sum(lease.ready and lease.role is LeaseRole.STANDBY for lease in leases)

    def began(self, after: float = 0.0) -> list[float]:
        """When the incidents began that began ``after``; seconds of CLOCK_MONOTONIC, in order."""
        # An incident is told of again when its verdict changes.
        began: dict[str, float] = {each["id"]: each["began"] for each in self._events("incident")}
        return sorted(at for at in began.values() if at > after)

    def incidents(self) -> list[dict[str, Any]]:
        """The events of that kind: each incident as it was told, and once more for each change of its verdict."""
        return self._events("incident")

    def classes_not_applied(self) -> list[dict[str, Any]]:
        """The events of that kind: clients that were connected without the levers of their class."""
        return self._events("class_not_applied")

    def lane_states(self) -> list[dict[str, Any]]:
        """The events of that kind: the states of its lanes."""
        return self._events("lane_state")

    def takeovers(self) -> list[dict[str, Any]]:
        """The events of that kind."""
        return self._events("takeover")

    def lane(self) -> tuple[LaneReport, ControlUi]:
        """The domain's one lane and the vendor's command line on its private directory, past the guard."""
        lanes = self.lanes()
        if len(lanes) != 1:
            raise SuiteError(f"one lane was expected, the guard has {[lane.name for lane in lanes]}")
        return lanes[0], ControlUi(self._control, Path(lanes[0].pipe_directory))

    def events_of(self, kind: str) -> list[dict[str, Any]]:
        """The events of a kind, each with its time."""
        lines = self._control_command("events", "--lines", "1000").stdout.splitlines()
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def _events(self, kind: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.events_of(kind)]

    def _ask(self, what: str, row: type[T], key: str = "") -> list[T]:
        done = self._control_command(what)
        try:
            return rows(json.loads(done.stdout), key or what, row)
        except (ValueError, msgspec.ValidationError) as error:
            raise SuiteError(
                f"mpsguard-ctl {what}: status {done.returncode}; {error}; {done.stdout[:300]} {done.stderr[-300:]}"
            ) from None

    def _control_command(self, *words: str, timeout: float = 30.0) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "mpsguard.cli.ctl", "--run-directory", f"{self._root}/run", "--json", *words]
        try:
            return subprocess.run(
                command, env=_environment(), capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            raise SuiteError(f"mpsguard-ctl {words[0]} did not answer within {timeout:g} s") from None


@contextmanager
def guard(
    control: str,
    root: Path,
    *,
    held_sockets: bool = False,
    options: Options = Options(),
) -> Iterator[Guard]:
    """A running guard under `root`; it and its lane are ended afterwards."""
    with ExitStack() as stack:
        made = Guard(control, root, options)
        stack.callback(made.close)
        if held_sockets:
            made.hold_sockets()
        made.start()
        yield made


def rows(answer: object, key: str, row: type[T]) -> list[T]:
    """The rows of a `--json` answer: a list, or an object that has one under `key`. msgspec.ValidationError if not."""
    if isinstance(answer, Mapping):
        answer = answer.get(key)
    return msgspec.convert(answer, list[row])  # type: ignore[valid-type]


def _environment() -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_MPS_")}
    path: Sequence[str] = [str(REPOSITORY), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    return environment
