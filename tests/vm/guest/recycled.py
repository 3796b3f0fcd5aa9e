"""Runs inside the virtual machine: the guard's sensor, and owners of address spaces: their pids go to its clients.

In turn an owner ends before the fault, and one that is a client of the guard, and one that is not, after it. By the
time the sensor reads the list, another client has the pid. Argument: how often. Prints one JSON object.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable

from mpsguard.guard.evidence import Evidence, FaultContained, Trust
from mpsguard.guard.model import Client
from mpsguard.guard.sensors.kmod import KmodSensor
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes.process import ProcessHandle

TSG = "90"
DONE_SPARSE = "1"
DEADLINE_S = 120.0
KINDS = ("before", "since", "since, no client")


class Recycler:
    """The program that makes them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["/recycler", TSG], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def ask(self, line: str) -> list[str]:
        """Tell it what to do; the words of its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().split()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


class Clients:
    """Tells the sensor of clients."""

    def __init__(self, sensor: KmodSensor) -> None:
        self._sensor = sensor
        self._handle = ProcessHandle.open(1)

    def came(self, process: ProcessKey, *, ended: bool = False) -> None:
        """A client came, and ended since perhaps."""
        client = Client(process, 0, 0, "train", "/", None, None, "default", "default-0", 0.0)
        self._sensor.client_came(client, self._handle)
        if ended:
            self._sensor.client_ended(client)

    def close(self) -> None:
        """Give the handle back."""
        self._handle.close()


class Told:
    """The sensor's evidence of faults."""

    def __init__(self) -> None:
        self.faults: list[Evidence] = []
        self.graded_at_once = 0
        """Not the hints: the sensor waits for a client before it gives one."""

    def __call__(self, evidence: Evidence) -> None:
        """Take what the sensor says."""
        if isinstance(evidence.what, FaultContained):
            self.faults.append(evidence)
            self.graded_at_once += evidence.trust is not Trust.HINT


async def until(count: Callable[[], int], wanted: int) -> None:
    """Let the sensor work until it has said so much."""
    end = time.monotonic() + DEADLINE_S
    while count() < wanted:
        if time.monotonic() > end:
            raise TimeoutError(f"{count()} of {wanted}")
        await asyncio.sleep(0.001)


async def recycled(rounds: int) -> dict[str, object]:
    """Return the counts for the test outside to judge."""
    told = Told()
    expected: list[tuple[ProcessKey | None, Trust]] = []
    sensor, recycler = KmodSensor(told), Recycler()
    clients = Clients(sensor)
    given_away = contained = at_once = 0
    for number in range(rounds):
        kind = KINDS[number % len(KINDS)]
        # No turn of the loop from the owner's fault until its pid is another client's.
        pid, start, heir_pid, heir_start = map(int, recycler.ask(kind.split(",", maxsplit=1)[0]))
        owner, heir = ProcessKey(pid, start), ProcessKey(heir_pid, heir_start)
        given_away += owner.pid == heir.pid and owner != heir
        if kind == "since":
            clients.came(owner, ended=True)
        clients.came(heir)
        if kind == "before":
            contained += recycler.ask("fault") == ["fault", DONE_SPARSE]
            expected.append((None, Trust.NONE))
        else:
            expected.append((owner, Trust.PROOF if kind == "since" else Trust.HINT))
        # Hints come later, in a bunch: counted here, they would keep the sensor from its turn for hundreds of rounds,
        # and the list keeps 256 of those that are gone.
        at_once += expected[-1][1] is not Trust.HINT
        await until(lambda: told.graded_at_once, at_once)
        _, ending = recycler.ask("end")
        contained += kind != "before" and ending == DONE_SPARSE
    await until(lambda: len(told.faults), rounds)
    sensor.close()
    clients.close()
    recycler.close()
    named = [(each.process, each.trust) for each in sorted(told.faults, key=lambda each: each.observed_at)]
    wrong = [str(each) for each in zip(named, expected, strict=True) if each[0] != each[1]]
    return {
        "rounds": rounds,
        "given away": given_away,
        "contained": contained,
        "wrong": len(wrong),
        "examples": wrong[:5],
        "proven": sum(trust is Trust.PROOF for _, trust in named),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(recycled(int(sys.argv[1])))) + "\n")
    sys.exit(0)
