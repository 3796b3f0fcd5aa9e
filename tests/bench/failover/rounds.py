"""One fault after the other on the lane of some services, and what each of them made of it."""

import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.bench.core.bench import Bench, Target
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.guard import Guard
from tests.bench.core.programs import Work
from tests.bench.failover.program import Service
from tests.bench.failover.streams import Streams

TAKEN_OVER: Final = 20.0
"""Seconds in which a standby must have gone on."""
MOMENTS: Final = (0.05, 0.6)
"""Seconds of ordinary work of the culprit before its fault: somewhere in the services' steps."""
_AFTER: Final = 0.5
"""Seconds to go on before the next thing is done."""
_MS: Final = 1e6


@dataclass
class Samples:
    """Milliseconds from the injection, a value for each takeover."""

    sign: list[float] = field(default_factory=list)
    """The driver's or the server's first word of it, whatever that is; one for each fault."""
    promoted: list[float] = field(default_factory=list)
    """The standby's `ready` returned."""
    kinds: list[str] = field(default_factory=list)
    """The fault of each."""
    operation: list[float] = field(default_factory=list)
    """Its first operation on the shared state has finished."""
    connected: list[float] = field(default_factory=list)
    """It has the connections, and has written what was still to be written."""
    token: list[float] = field(default_factory=list)
    """The next piece of an answer came to a network client."""
    silence: list[float] = field(default_factory=list)
    """The longest that an answer under way said nothing; not from the injection."""
    guarded: list[float] = field(default_factory=list)
    """Seconds until the next standby was ready."""
    errors: list[str] = field(default_factory=list)

    def last(self) -> str:
        """The last takeover, for people."""
        steps = {
            "sign": self.sign,
            "promoted": self.promoted,
            "operation": self.operation,
            "connected": self.connected,
            "token": self.token,
        }
        said = ", ".join(f"{name} {values[-1]:.1f}" for name, values in steps.items() if values)
        return f"{said} ms; next standby {self.guarded[-1]:.1f} s"


@dataclass
class Crowd:
    """Services on one guard, with network clients, under one fault after the other."""

    bench: Bench
    guard: Guard
    services: Sequence[Service]
    streams: Sequence[Streams]
    chance: random.Random = field(default_factory=lambda: random.Random(20))

    def wait(self, since: int = 0) -> float:
        """Until every service has a standby; the seconds it took."""
        begin = time.monotonic()
        for service in self.services:
            service.wait_until_guarded(since)
        return time.monotonic() - begin

    def fault(self, name: str, samples: Samples) -> None:
        """Fault a client of the services' lane, and watch which services go on; all are guarded afterwards."""
        with Clients() as clients:
            at = commit(self.bench, self.guard, clients, name, self.chance.uniform(*MOMENTS))
            self._look(self.services, name, at, samples)
        samples.sign += [sign * 1e3 - at / _MS for sign in self.guard.began(at / 1e9)[:1]]
        samples.guarded.append(self.wait(at))

    def kill(self, samples: Samples) -> None:
        """SIGKILL the process that works, of one service after the other; all are guarded afterwards."""
        first = time.monotonic_ns()
        for service in self.services:
            time.sleep(self.chance.uniform(*MOMENTS))  # a random moment, not a wait
            at = time.monotonic_ns()
            os.kill(service.active(), signal.SIGKILL)
            self._look([service], "kill", at, samples)
        samples.guarded.append(self.wait(first))

    def _look(self, services: Sequence[Service], kind: str, at: int, samples: Samples) -> None:
        for service in services:
            streams = self.streams[self.services.index(service)]
            promoted = service.program.wait_for("promoted", at, TAKEN_OVER)
            first = service.program.wait_for("first_operation", at, TAKEN_OVER)
            connected = service.program.wait_for("connected", at, TAKEN_OVER)
            token = _next_piece(streams, first["ns"])
            samples.kinds.append(kind)
            samples.promoted.append((promoted["ns"] - at) / _MS)
            samples.operation.append((first["ns"] - at) / _MS)
            samples.connected.append((connected["ns"] - at) / _MS)
            samples.token.append((token - at) / _MS)
        until = time.monotonic_ns() + int(_AFTER * 1e9)
        time.sleep(_AFTER)  # of ordinary work, so that a silence has its end
        for service in services:
            streams = self.streams[self.services.index(service)]
            if silence := streams.longest_silence(at, until):
                samples.silence.append(silence / _MS)


def start_culprit(bench: Bench, target: Target, clients: Clients, fault: str, after: float) -> Client:
    """A client that commits a fault when it has worked for so many seconds; it begins with `Client.go`."""
    work = Work(seconds=60, controlled=True, fault=fault, fault_at=after)
    # All of its kernels are loaded beforehand, or loading the one that faults would count as the fault's own time.
    variables = {"CUDA_MODULE_LOADING": "EAGER"}
    culprit = clients.start(bench.programs.worker(work), target.pipe_directory, "culprit", variables)
    culprit.wait_for("first_kernel")
    return culprit


def commit(bench: Bench, target: Target, clients: Clients, fault: str, after: float) -> int:
    """Have a client work for so many seconds and then do something wrong; when that was, ns."""
    culprit = start_culprit(bench, target, clients, fault, after)
    culprit.go()
    return injected(culprit)


def injected(culprit: Client) -> int:
    """When the fault was launched, ns; it has been prepared by then."""
    return int(culprit.wait_for("injected").monotonic * 1e9)


def _next_piece(streams: Streams, after: int) -> int:
    due = time.monotonic() + TAKEN_OVER
    while True:
        came = next((at for at in streams.pieces() if at > after), None)
        if came is not None:
            return came
        if time.monotonic() > due:
            raise SuiteError("no network client has heard anything since the takeover")
        time.sleep(0.002)
