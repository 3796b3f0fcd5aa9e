"""Attacks of three users that go on and on, and fifty good clients of a fourth that come and go all the while.

`scripts/hostile-bench` measures with it, test_siege.py looks at what the guard has lost. The stack is SIMULATED
(`fault_injection.sim`) and so is the driver (`with_driver`); the guard, its sockets and its children are real.
"""

import os
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from mpsguard.vault.wire.address import socket_path
from tests.harness.waiting import wait_for
from tests.hostile.attacker import attack
from tests.hostile.attacks import ATTACKS, GOOD, GOOD_CLIENTS, IMPORTS
from tests.hostile.slices import GUARD, Slices, of_user, slices
from tests.hostile.stalled_files import StalledFiles
from tests.integration.guarded import Guarded, Program

UIDS: Final = (65532, 65533, 65534)
GOOD_UID: Final = 1000
WEIGHT: Final = 1000
"""The CPUWeight= of distribution/systemd/mpsguard.slice."""


class State(NamedTuple):
    """What a guard with all its children but the launcher's lanes has."""

    descriptors: int
    processes: int
    threads: int
    memory_mib: float
    """Resident, of the guard's own process."""


class Handshakes(NamedTuple):
    """What the good clients saw, in milliseconds."""

    served: int
    refused: int
    best: float
    p50: float
    p99: float
    worst: float
    p99_running: float
    """Without the time in which the client itself had work to do and no processor."""


class Siege:
    """One guard with its good clients; owns their processes."""

    def __init__(self, guarded: Guarded, mount: Path, slices: Slices) -> None:
        """``mount`` has two empty directories; ``slices`` share the processors, if there are any."""
        self.guarded = guarded
        self._mount = mount
        self._slices = slices
        # This process, too: what it starts begins there.
        slices.put(os.getpid(), GUARD, WEIGHT)
        self.guard = guarded.start()
        guarded.client().expect("started")
        self._good = attack(guarded, GOOD, uid=GOOD_UID, imports=IMPORTS)
        slices.put(self._good.pid, of_user(GOOD_UID))
        self._good.expect("started")
        self._lock = threading.Lock()
        self._served: list[tuple[float, float]] = []
        self._refused: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.is_served(3 * GOOD_CLIENTS)

    @contextmanager
    def under(self, names: Sequence[str]) -> Iterator[None]:
        """Attack as all of `UIDS`, by all of ``names``, until the body is over."""
        guarded, programs = self.guarded, list[Program]()
        try:
            with StalledFiles(self._mount / "pages") as stalled:
                try:
                    # Gone before anything asks /proc for the attackers' children: that would wait for these, too.
                    with StalledFiles(self._mount / "closes", flushes=False) as held:
                        files = [stalled.file, guarded.root / "cores", socket_path(guarded.run_directory), held.file]
                        for name in names:
                            for uid in UIDS:
                                programs.append(
                                    attack(guarded, ATTACKS[name], *map(str, files), uid=uid, imports=IMPORTS)
                                )
                                self._slices.put(programs[-1].pid, of_user(uid))
                        yield
                finally:
                    for program in programs:
                        _kill(program)
        finally:
            # Not before the file system is gone: one that waits for a page of it cannot die.
            for program in programs:
                program.close()

    def handshakes(self, seconds: float) -> Handshakes:
        """What the good clients see for so long."""
        with self._lock:
            self._served.clear()
            self._refused.clear()
        time.sleep(seconds)
        with self._lock:
            told, refused = list(self._served), len(self._refused)
        if len(told) < 2:
            return Handshakes(len(told), refused, 0, 0, 0, 0, 0)
        served = sorted(ms for ms, _ in told)
        running = _p99([ms - waited for ms, waited in told])
        return Handshakes(len(served), refused, served[0], statistics.median(served), _p99(served), served[-1], running)

    def is_served(self, count: int) -> None:
        """Wait until so many good clients were served from now on; TimeoutError."""
        with self._lock:
            before = len(self._served)
        wait_for(f"{count} good clients", lambda: len(self._served) >= before + count, 60)

    def refusals(self) -> list[str]:
        """What good clients were told that were not served, since `handshakes` began."""
        with self._lock:
            return list(self._refused)

    def state(self) -> State:
        """What the guard and its children have now."""
        guard = psutil.Process(self.guard)
        found = [guard]
        for child in guard.children():
            with suppress(psutil.NoSuchProcess):
                found += [child, *child.children(recursive=True)]
        descriptors = threads = processes = 0
        for process in found:
            with suppress(psutil.NoSuchProcess):
                descriptors += process.num_fds()
                threads += process.num_threads()
                processes += 1
        return State(descriptors, processes, threads, guard.memory_info().rss / 2**20)

    def replace_guard(self) -> tuple[float, float]:
        """End the guard in order and start the next one; the seconds that each took."""
        began = time.monotonic()
        self.guarded.stop()
        ended = time.monotonic()
        self.guard = self.guarded.start()
        return ended - began, time.monotonic() - ended

    def is_alive(self) -> bool:
        """Whether the guard is still the process it was."""
        return self.guarded.process.runs

    def _read(self) -> None:
        with suppress(EOFError):
            while True:
                told = self._good.next(3600)
                with self._lock:
                    if told["event"] == "served":
                        self._served.append((told["ms"], told["waited"]))
                    elif told["event"] == "refused":
                        self._refused.append(told.get("why", "no lane"))

    def close(self) -> None:
        """End the good clients; `Guarded` ends the rest."""
        # Its output ends with the last of its processes.
        _kill(self._good)
        self._reader.join(30)


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100, method="inclusive")[98]


def _kill(program: Program) -> None:
    try:
        children = psutil.Process(program.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        children = []
    for process in children:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    program.process.kill()


@contextmanager
def siege() -> Iterator[Siege]:
    """A guard and its good clients, and what it takes to attack it; all of it goes with the body."""
    with ExitStack() as stack:
        guarded = stack.enter_context(Guarded(domain="multiuser = true"))
        text = guarded.config.read_text()
        guarded.config.write_text(text.replace("[guard]", f'[guard]\ncore_directory = "{guarded.root}/cores"', 1))
        guarded.process.module = "tests.hostile.with_driver"
        mount = guarded.root / "stalled"
        for name in ("pages", "closes"):
            (mount / name).mkdir(parents=True)
        running = Siege(guarded, mount, stack.enter_context(slices()))
        stack.callback(running.close)
        yield running
