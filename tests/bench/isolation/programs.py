"""Programs that know nothing of mpsguard, run unchanged under the preload: do they compute what they do plainly?"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.finding import Finding
from tests.bench.isolation import preloaded, sameness, sanitizer
from tests.bench.isolation.partial import kept, skipped
from tests.bench.isolation.sameness import Compared, Program

_LOOPBACK: Final = {"NCCL_SOCKET_IFNAME": "lo"}
"""All ranks are on this host, which may have no other network."""
_ORDERED: Final = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
"""PyTorch then allocates by the driver's stream-ordered functions, each tensor by itself."""
TORCH: Final = (
    Program("PyTorch training", ("train",)),
    Program("PyTorch inference", ("infer",)),
    Program("CUDA graph of a training step", ("graph",)),
    Program("PyTorch training by cudaMallocAsync", ("train",), (_ORDERED,)),
    Program("PyTorch on four streams by cudaMallocAsync", ("streams",), (_ORDERED,)),
    Program("CUDA graph of a training step by cudaMallocAsync", ("graph",), (_ORDERED,)),
    Program("cuBLAS products (by PyTorch)", ("gemm",)),
    Program(
        "NCCL all-reduce, one process",
        ("allreduce",),
        (_LOOPBACK,),
        note="one rank: nothing is exported to, or mapped from, another process",
    ),
    Program(
        "NCCL all-reduce, two processes on one GPU",
        ("allreduce",),
        ({**_LOOPBACK, "NCCL_HOSTID": "one"}, {**_LOOPBACK, "NCCL_HOSTID": "other"}),
        together=False,
        note="NCCL refuses two ranks on one GPU of one host, so each says it is another host (NCCL_HOSTID): data go by"
        " socket, and no memory is exported; --only nccl has two GPUs",
    ),
)
DUPLICATE: Final = Program(
    "NCCL, two processes on one GPU of one host",
    ("allreduce",),
    ({**_LOOPBACK, "NCCL_DEBUG": "WARN"},) * 2,
    together=False,
)


@dataclass
class Study:
    """All of them, as clients of one guard; then compute-sanitizer, without MPS."""

    bench: Bench
    compared: list[Compared] = field(default_factory=list)
    refusal: str = ""
    """What NCCL says to two ranks on one GPU, plainly."""
    sanitized: list[sanitizer.Compared] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def make(self) -> None:
        """One after the other."""
        if missing := preloaded.no_torch(self.bench):
            self.skipped["programs under the preload"] = missing
        else:
            with self.bench.guard() as guard:
                self.bench.warm_up(guard)
                for program in TORCH:
                    self.compared.append(sameness.compare(self.bench, guard, program))
                self.refusal = reason(sameness.plainly(self.bench, guard, DUPLICATE).failure)
                self.bench.say(f"{DUPLICATE.name}: {self.refusal or 'works'}")
        if missing := sanitizer.missing():
            self.skipped["compute-sanitizer"] = missing
        else:
            self.sanitized = [sanitizer.compare(self.bench, each) for each in sanitizer.PROGRAMS]

    def rows(self) -> Iterator[Finding]:
        """What there is."""
        for each in self.compared:
            finding = each.finding()
            if len(each.program.ranks) > 1 and self.refusal:
                finding = Finding(finding.row, f"{finding.note}; as one host, plainly: {self.refusal}")
            yield finding
        if self.compared:
            yield sameness.at_work(self.compared, "processes of these programs whose allocations the preload served")
        for found in self.sanitized:
            yield found.finding()
        for name, why in self.skipped.items():
            yield skipped(name, why)


def reason(failure: str) -> str:
    """What NCCL itself said, of all that a program left behind; its beginning if NCCL said nothing."""
    said = re.search(r"NCCL WARN ([^|]*)", failure)
    return said[1].strip() if said else failure[:300]


def measure(bench: Bench) -> Iterator[Finding]:
    """All of it, and the rows of what was made."""
    if bench.programs.simulated:
        bench.say("programs: a simulated GPU has no libraries to run on it")
        return
    study = Study(bench)
    yield from kept(study.make, study.rows)


MEASUREMENT: Final = Measurement(
    "programs", "PyTorch, CUDA graphs, cuBLAS, NCCL, compute-sanitizer, unchanged", measure
)
