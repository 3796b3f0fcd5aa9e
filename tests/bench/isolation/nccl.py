"""NCCL between two GPUs of one host, each rank a process with one of them, under the preload and plainly."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.finding import Finding
from tests.bench.isolation import preloaded, sameness
from tests.bench.isolation.partial import kept, skipped
from tests.bench.isolation.sameness import Compared, Program

_LOOPBACK: Final = {"NCCL_SOCKET_IFNAME": "lo"}
PROGRAMS: Final = (
    Program(
        "NCCL all-reduce, two GPUs, a process each",
        ("allreduce",),
        tuple({**_LOOPBACK, "CUDA_VISIBLE_DEVICES": str(device)} for device in range(2)),
        together=False,
    ),
    Program(
        "NCCL all-reduce, two processes that see both GPUs",
        ("allreduce",),
        (_LOOPBACK, _LOOPBACK),
        own_devices=True,
        together=False,
        note="each uses one of them",
    ),
)


@dataclass
class Study:
    """As clients of one guard with both GPUs in its lane."""

    bench: Bench
    compared: list[Compared] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def make(self) -> None:
        """One after the other."""
        gpus = [device for device in Path("/dev").glob("nvidia[0-9]*") if device.is_char_device()]
        missing = "" if len(gpus) >= 2 else f"two GPUs are needed, this machine has {len(gpus)}"
        if missing := missing or preloaded.no_torch(self.bench):
            self.skipped["NCCL between two GPUs"] = missing
            return
        with self.bench.guard() as guard:
            self.bench.warm_up(guard)
            self.compared += [sameness.compare(self.bench, guard, program) for program in PROGRAMS]

    def rows(self) -> Iterator[Finding]:
        """What there is."""
        for each in self.compared:
            yield each.finding()
        if self.compared:
            yield sameness.at_work(self.compared, "NCCL's processes whose allocations the preload served")
        for name, why in self.skipped.items():
            yield skipped(name, why)


def measure(bench: Bench) -> Iterator[Finding]:
    """All of it, and the rows of what was made."""
    if bench.programs.simulated:
        bench.say("nccl: a simulated GPU has no libraries to run on it")
        return
    study = Study(bench)
    yield from kept(study.make, study.rows)


MEASUREMENT: Final = Measurement("nccl", "NCCL between two GPUs under the preload; needs a machine with two", measure)
