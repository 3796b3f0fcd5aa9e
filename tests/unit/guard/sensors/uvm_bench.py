"""Real processes as clients, and a sensor on a bench: what the tests of the uvm sensor share."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mpsguard.guard.evidence import Evidence, UvmFault
from mpsguard.guard.sensors.uvm import UvmSensor
from mpsguard.guard.sensors.uvm_client import Attachment
from mpsguard.guard.sensors.uvm_shares import Limits
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes.process import ProcessHandle
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import until
from tests.unit.guard.sensors.uvm_driver import StandInDriver

DEVICE = Path("/dev/full")
OPEN_SPACE = "space = os.open('/dev/full', os.O_RDWR | os.O_APPEND)"
OPEN_PLAIN = "plain = os.open('/dev/full', os.O_RDWR)"
INITIALIZE = "fcntl.fcntl(plain, fcntl.F_SETFL, os.O_APPEND)"
LOOP = "import fcntl, os, sys\nfor line in sys.stdin: exec(line); print('done', flush=True)"

AGAIN = f"print('done', flush=True)\n{LOOP}"
EXEC = f"os.execv(sys.executable, [sys.executable, '-S', '-c', {AGAIN!r}])"


class Process:
    """A process that does what it is told, one line of Python at a time."""

    def __init__(self, *commands: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-S", "-c", LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.does(*commands)
        self.handle = ProcessHandle.open(self.popen.pid)
        self.key = self.handle.key

    def does(self, *commands: str) -> None:
        for command in commands:
            self.say(command)
            assert self.hear() == "done\n"

    def say(self, command: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(command + "\n")
        self.popen.stdin.flush()

    def hear(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline()

    def ends(self) -> None:
        self.popen.kill()
        self.popen.wait()
        self.handle.close()
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.close()
        self.popen.stdout.close()


class Bench:
    """A sensor, its stand-in driver, and what it emitted."""

    def __init__(self, limits: Limits, driver: StandInDriver, gpus: Path) -> None:
        self.driver = driver
        self.evidence: list[Evidence] = []
        self.told: list[Attachment] = []
        self.sensor = UvmSensor(
            self.evidence.append, driver=self.driver, device=DEVICE, gpus=gpus, limits=limits, told=self.told.append
        )
        self.processes: list[Process] = []

    def process(self, *commands: str) -> Process:
        self.processes.append(Process(*commands))
        return self.processes[-1]

    async def came(self, handle: ProcessHandle, uid: int = 0) -> None:
        """Tell the sensor, and wait until it has looked."""
        self.sensor.watch(handle, uid)
        await until(lambda: not self.looking(handle.key))

    async def unwatchable(self, handle: ProcessHandle, uid: int = 0) -> str:
        """Tell the sensor, and ask it."""
        self.sensor.watch(handle, uid)
        return await self.sensor.unwatchable(handle)

    def looking(self, key: ProcessKey) -> bool:
        """Whether the client is being looked at now."""
        return self.sensor._clients[key].looking_since is not None

    def reason(self, key: ProcessKey) -> str:
        return next(one.reason for one in self.sensor.attachments() if one.process == key)

    def attached(self) -> list[ProcessKey]:
        return [one.process for one in self.sensor.attachments() if one.attached]

    def faults(self) -> list[tuple[ProcessKey | None, int]]:
        return [(one.process, one.what.address) for one in self.evidence if isinstance(one.what, UvmFault)]

    def close(self) -> None:
        self.sensor.close()
        self.sensor.close()
        self.driver.reap()
        assert self.driver.queues == []
        for process in self.processes:
            process.ends()


def scenario(
    body: Callable[[Bench], Awaitable[None]],
    limits: Limits = Limits(),  # noqa: B008  # frozen
    driver: Callable[[], StandInDriver] = StandInDriver,
    gpus: Path = Path("/nonexistent"),
    *,
    tried: bool = True,
) -> None:
    """Run ``body``; afterwards this process has the descriptors it had before.

    ``tried``: not before a thread has found out whether there is a driver.
    """

    async def main() -> None:
        before = open_descriptors()
        bench = Bench(limits, driver(), gpus)
        try:
            if tried:
                await until(lambda: bench.sensor._trying_since is None)
            await body(bench)
        finally:
            bench.close()
        # A thread that the driver held up gives its descriptors back when it is let go.
        await until(lambda: not opened_since(before))

    asyncio.run(main())


SLEEPER = "[sys.executable, '-c', 'import time; time.sleep(99)']"
FORK = f"child = os.fork() or (os.close(1), os.execv(sys.executable, {SLEEPER}))"


@contextmanager
def child_with_the_same_file(process: Process) -> Iterator[ProcessHandle]:
    process.does("os.set_inheritable(space, True)", FORK)
    process.say("print(child)")
    child = int(process.hear())
    process.hear()
    while b"time.sleep" not in Path(f"/proc/{child}/cmdline").read_bytes():
        time.sleep(0.001)
    with ProcessHandle.open(child) as handle:
        yield handle
        os.kill(child, 9)
        process.does("os.waitpid(child, 0)")
