"""Runs inside the virtual machine: the guard's sensor, and owners of address spaces: their pids go to its clients.

In turn an owner ends before the fault, and one that is a client of the guard, and one that is not, after it. By the
time the sensor reads the list, another client has the pid. Argument: how often. Prints one JSON object.
"""

import asyncio
import json
import subprocess
import sys
import time

from mpsguard.evidence import Evidence, FaultContained, Trust
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.model import Client, ProcessKey
from mpsguard.sensors.kmod import KmodSensor

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


async def until(evidence: list[Evidence], count: int) -> None:
    """Let the sensor work until it has said so much."""
    end = time.monotonic() + DEADLINE_S
    while sum(isinstance(each.what, FaultContained) for each in evidence) < count:
        if time.monotonic() > end:
            raise TimeoutError(f"{len(evidence)} of {count}")
        await asyncio.sleep(0.001)


async def recycled(rounds: int) -> dict[str, object]:
    """Return the counts for the test outside to judge."""
    evidence: list[Evidence] = []
    expected: list[tuple[ProcessKey | None, Trust]] = []
    sensor, recycler = KmodSensor(evidence.append), Recycler()
    clients = Clients(sensor)
    given_away = contained = waiting = 0
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
            waiting += kind != "since"
            expected.append((owner, Trust.PROOF if kind == "since" else Trust.HINT))
        await until(evidence, len(expected) - waiting)
        _, ending = recycler.ask("end")
        contained += kind != "before" and ending == DONE_SPARSE
    await until(evidence, rounds)
    sensor.close()
    clients.close()
    recycler.close()
    faults = sorted(
        (each for each in evidence if isinstance(each.what, FaultContained)), key=lambda each: each.observed_at
    )
    told = [(each.process, each.trust) for each in faults]
    wrong = [str(each) for each in zip(told, expected, strict=True) if each[0] != each[1]]
    return {
        "rounds": rounds,
        "given away": given_away,
        "contained": contained,
        "wrong": len(wrong),
        "examples": wrong[:5],
        "proven": sum(trust is Trust.PROOF for _, trust in told),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(recycled(int(sys.argv[1])))) + "\n")
    sys.exit(0)
