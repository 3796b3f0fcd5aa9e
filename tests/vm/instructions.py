"""Instructions of nvidia-uvm that are executed to service a fault, counted one by one in the virtual machine.

QEMU, told to translate one instruction at a time, logs the address of each that is executed within the module's code;
with `-icount` the machine's time goes by instructions, so that a run is much like the next. Where the bottom half waits
for its GPU it turns in a loop, more or less often. So it is counted by function, for each service call; a function
costs what it costs in most of them, and one that costs something else each time waits, and is left out.
"""

from __future__ import annotations

import bisect
import os
import re
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.vm.guest_programs import program
from tests.vm.guests import LOAD, UNLOAD, with_modules
from tests.vm.machine import boot
from tests.vm.sources import Kernel
from tests.vm.workshop import Modules

ROUNDS = 16
DEADLINE_S = 1500.0
SM = ("uvm_gpu_service_replayable_faults", "uvm_parent_gpu_service_replayable_faults")
COPY_ENGINE = ("uvm_gpu_service_non_replayable_fault_buffer", "uvm_parent_gpu_service_non_replayable_fault_buffer")
CALLER = "_isr_bottom_half"
TOP_HALF = "uvm_isr_top_half"
"""Interrupts a service call whenever it likes, and is none of it."""

_SECTION = "/sys/module/nvidia_uvm/sections/.text"
_EXECUTED = re.compile(r"^Trace \d+: \S+ \[[0-9a-f]+/([0-9a-f]+)/")
_BASE = re.compile(r"uvm-text (0x[0-9a-f]+)")


@dataclass(frozen=True)
class Symbols:
    """The functions of a module's .text, by offset."""

    starts: list[int]
    names: list[str]
    end: int

    @classmethod
    def of(cls, module: Path) -> Symbols:
        """Read from the module's symbol table."""
        command = ["nm", "--numeric-sort", "--defined-only", str(module)]
        listing = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60.0).stdout
        header = subprocess.run(
            ["objdump", "-h", "-j", ".text", str(module)], capture_output=True, text=True, check=True, timeout=60.0
        ).stdout
        size = re.search(r"\s\.text\s+([0-9a-f]+)", header)
        inside = _functions_of_text(module)
        found = [line.split() for line in listing.splitlines()]
        pairs = [(int(value, 16), name) for value, kind, name in found if kind in "tT" and name in inside]
        if size is None or not pairs:
            raise ValueError(f"{module}: no functions in .text")
        return cls([start for start, _ in pairs], [name for _, name in pairs], int(size[1], 16))

    def at(self, offset: int) -> str:
        """The function at an offset."""
        return self.names[max(bisect.bisect_right(self.starts, offset) - 1, 0)]


def _functions_of_text(module: Path) -> set[str]:
    command = ["objdump", "-t", "-j", ".text", str(module)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60.0).stdout
    return {line.split()[-1] for line in listing.splitlines() if " F .text" in line}


@dataclass
class Service:
    """The service calls of one kind: for each, how many instructions of which function."""

    calls: list[Counter[str]] = field(default_factory=list)

    def functions(self) -> set[str]:
        """All that ran in any of the calls."""
        return {name for call in self.calls for name in call}

    def usual(self) -> dict[str, int]:
        """What a function costs in more than half of the calls; those without such a number wait for something."""
        found = {}
        for name in {name for call in self.calls for name in call}:
            ((cost, often),) = Counter(call[name] for call in self.calls).most_common(1)
            if 2 * often > len(self.calls) and cost:
                found[name] = cost
        return found


def compared(ours: Service, stock: Service) -> tuple[int, int, dict[str, tuple[int, int]]]:
    """Instructions of both in the functions that have a usual cost, and where these differ.

    A function that one of the two never runs costs nothing there: the compiler may have put it into another. One that
    has no usual cost in one of the two is left out of both.
    """
    mine, theirs = ours.usual(), stock.usual()
    waiting = (ours.functions() - mine.keys()) | (stock.functions() - theirs.keys())
    names = (mine.keys() | theirs.keys()) - waiting
    costs = {name: (mine.get(name, 0), theirs.get(name, 0)) for name in sorted(names)}
    differing = {name: pair for name, pair in costs.items() if pair[0] != pair[1]}
    return sum(pair[0] for pair in costs.values()), sum(pair[1] for pair in costs.values()), differing


OWN = ("uvm_fault_isolation", "uvm_fault_report")
"""How the names of the patch's own functions begin."""


def own(ours: Service) -> int:
    """Instructions of the patch's own functions in all calls."""
    return sum(cost for call in ours.calls for name, cost in call.items() if name.startswith(OWN))


def tally(names: Iterable[str], entries: Sequence[str]) -> Service:
    """From the function of each executed instruction: service calls, from a first one of `entries` to their caller."""
    service = Service()
    call: Counter[str] | None = None
    for name in names:
        if call is None:
            if name in entries:
                call = Counter({name: 1})
        elif CALLER in name:
            service.calls.append(call)
            call = None
        elif not name.startswith(TOP_HALF):
            call[name] += 1
    return service


def text_address(kernel: Kernel, modules: Modules) -> int:
    """Where the machine loads the module's code; the same each time, for the kernel is told not to randomise."""
    steps = [*LOAD, f"busybox echo uvm-text $(busybox cat {_SECTION}) > /dev/kmsg"]
    run = boot(kernel, with_modules(modules), steps, deadline_s=DEADLINE_S, processors=1)
    found = _BASE.search(run.console)
    if found is None:
        raise RuntimeError(f"the machine does not say where nvidia-uvm is: {run.console[-2000:]}")
    return int(found[1], 16)


def count(kernel: Kernel, modules: Modules, rounds: int = ROUNDS) -> dict[str, Service]:
    """Service calls of an SM's and of a copy engine's faults, each on managed memory of its own, none of them fatal."""
    base, symbols = text_address(kernel, modules), Symbols.of(modules.uvm)
    archive = with_modules(modules)
    archive.file("program", program("service", modules.tree))
    steps = [
        *LOAD,
        f"busybox echo uvm-text $(busybox cat {_SECTION}) > /dev/kmsg",
        f"/program {rounds} >/dev/ttyS1 2>/dev/console; S=$?",
        *UNLOAD,
        "(exit $S)",
    ]
    names: list[str] = []
    with tempfile.TemporaryDirectory(prefix="mpsguard-count-") as directory:
        pipe = Path(directory) / "executed"
        os.mkfifo(pipe)
        reader = threading.Thread(target=lambda: names.extend(_executed(pipe, base, symbols)), daemon=True)
        reader.start()
        extra = (
            *("-icount", "shift=0,sleep=off", "-singlestep", "-d", "exec,nochain"),
            *("-dfilter", f"{base:#x}..{base + symbols.end - 1:#x}", "-D", str(pipe)),
        )
        run = boot(kernel, archive, steps, deadline_s=DEADLINE_S, processors=1, extra=extra)
        reader.join(timeout=60.0)
    if run.status != 0 or run.lines != [{"faults": 2 * rounds}]:
        raise RuntimeError(f"status {run.status}, {run.lines}: {run.console[-2000:]}")
    if f"uvm-text {base:#x}" not in run.console.replace("0x0", "0x"):
        raise RuntimeError("nvidia-uvm is not where it was in the run before")
    return {"an SM": tally(names, SM), "a copy engine": tally(names, COPY_ENGINE)}


def _executed(pipe: Path, base: int, symbols: Symbols) -> Iterator[str]:
    """The function of each executed instruction, from the first service call on; the rest is not kept."""
    kept: dict[int, str] = {}
    began = False
    with pipe.open(encoding="ascii", errors="replace") as lines:
        for line in lines:
            found = _EXECUTED.match(line)
            if found is None:
                continue
            address = int(found[1], 16)
            name = kept.get(address)
            if name is None:
                name = kept[address] = symbols.at(address - base)
            began = began or name in SM or name in COPY_ENGINE
            if began:
                yield name
