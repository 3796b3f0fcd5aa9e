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
from functools import cache
from pathlib import Path

from tests.vm.guest_programs import program
from tests.vm.guests import LOAD, UNLOAD, with_modules
from tests.vm.machine import Run, boot
from tests.vm.sources import Kernel
from tests.vm.workshop import PATCH, Modules

ROUNDS = 16
ATTEMPTS = 4
DEADLINE_S = 1500.0
CLOCK = ("-icount", "shift=0,sleep=off")
SM = ("uvm_gpu_service_replayable_faults", "uvm_parent_gpu_service_replayable_faults")
COPY_ENGINE = ("uvm_gpu_service_non_replayable_fault_buffer", "uvm_parent_gpu_service_non_replayable_fault_buffer")
CALLER = "_isr_bottom_half"
TOP_HALF = "uvm_isr_top_half"
"""Interrupts a service call whenever it likes, and is none of it."""

SECTIONS = (".text", ".text.unlikely")
"""Where a loaded module has code: what the compiler takes for cold, ours above all, is in the second."""

_LOADED = "/sys/module/nvidia_uvm/sections/"
_EXECUTED = re.compile(r"^Trace \d+: \S+ \[[0-9a-f]+/([0-9a-f]+)/")
_SYMBOL = re.compile(r"^([0-9a-f]+) .{5} F (\S+)\s+[0-9a-f]+ (?:\.hidden )?(\S+)$", re.MULTILINE)
_SIZE = re.compile(r"^\s*\d+ (\S+)\s+([0-9a-f]+)\s", re.MULTILINE)
_DEFINED = re.compile(r"^(?!#|typedef|struct)\w[\w \t*]*?\b(\w+)\([^;{}]*\)\n\{", re.MULTILINE)


@dataclass(frozen=True)
class Code:
    """The functions of a loaded module, by address."""

    starts: list[int]
    names: list[str]
    ranges: list[range]
    """The addresses of each section."""

    @classmethod
    def of(cls, module: Path, bases: dict[str, int]) -> Code:
        """Read the module's symbol table; `bases` says where each of SECTIONS was loaded. Raises ValueError."""
        functions = sorted(
            (bases[section] + int(offset, 16), name)
            for offset, section, name in _SYMBOL.findall(_objdump(module, "-t"))
            if section in bases
        )
        sizes = {section: int(size, 16) for section, size in _SIZE.findall(_objdump(module, "-h"))}
        if not functions or not bases.keys() <= sizes.keys():
            raise ValueError(f"{module}: no functions in {' and '.join(bases)}")
        ranges = [range(base, base + sizes[section]) for section, base in bases.items()]
        return cls([start for start, _ in functions], [name for _, name in functions], ranges)

    def at(self, address: int) -> str:
        """The function at an address."""
        return self.names[max(bisect.bisect_right(self.starts, address) - 1, 0)]

    @property
    def filter(self) -> str:
        """The ranges as QEMU's -dfilter wants them."""
        return ",".join(f"{part.start:#x}..{part.stop - 1:#x}" for part in self.ranges)


def _objdump(module: Path, option: str) -> str:
    command = ["objdump", option, str(module)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60.0).stdout


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


@cache
def own_functions() -> frozenset[str]:
    """The functions that the patch's own files define, static ones too."""
    return frozenset(
        name
        for path in sorted((PATCH / "source").glob("*.c"))
        for name in _DEFINED.findall(path.read_text(encoding="utf-8"))
    )


def own(ours: Service) -> int:
    """Instructions of the patch's own functions in all calls, of parts that the compiler has split off, too."""
    mine = own_functions()
    return sum(cost for call in ours.calls for name, cost in call.items() if name.partition(".")[0] in mine)


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


def loaded_at(kernel: Kernel, modules: Modules) -> dict[str, int]:
    """Where the machine loads the module's code; the same each time, for the kernel is told not to randomise.

    Unless something was freed just before that is not freed yet: so the clock goes by instructions, as in what follows.
    """
    steps = [*LOAD, *TELL_BASES]
    return bases(boot(kernel, with_modules(modules), steps, deadline_s=DEADLINE_S, processors=1, extra=CLOCK))


TELL_BASES = [
    f"busybox echo uvm-section {section} $(busybox cat {_LOADED}{section}) > /dev/kmsg" for section in SECTIONS
]


def bases(run: Run) -> dict[str, int]:
    """The addresses of SECTIONS, as a machine has told them; raises RuntimeError."""
    told = dict(re.findall(r"uvm-section (\S+) (0x[0-9a-f]+)", run.console))
    if told.keys() != set(SECTIONS):
        raise RuntimeError(f"the machine does not say where nvidia-uvm is: {run.console[-2000:]}")
    return {section: int(told[section], 16) for section in SECTIONS}


@dataclass(frozen=True)
class Counted:
    """Service calls of one module."""

    serviced: dict[str, Service]
    """Of an SM's and of a copy engine's faults, each on managed memory of its own, none of them fatal."""

    contained: Service
    """Of a fatal fault of an SM after these; none if the module does not contain it."""


def count(kernel: Kernel, modules: Modules, rounds: int = ROUNDS) -> Counted:
    """Run the guest's `service`, and count. Raises RuntimeError if the run is not as it must be."""
    where = loaded_at(kernel, modules)
    for _ in range(ATTEMPTS):
        run, names = _counted(kernel, modules, where, rounds)
        if run.status != 0 or [line.get("faults") for line in run.lines] != [2 * rounds]:
            raise RuntimeError(f"status {run.status}, {run.lines}: {run.console[-2000:]}")
        told, where = where, bases(run)
        if told == where:
            break
    else:
        raise RuntimeError(f"nvidia-uvm is at {where}, and was at {told} in the run before")
    calls = tally(names, SM).calls
    return Counted(
        {"an SM": Service(calls[:rounds]), "a copy engine": tally(names, COPY_ENGINE)}, Service(calls[rounds:])
    )


def _counted(kernel: Kernel, modules: Modules, where: dict[str, int], rounds: int) -> tuple[Run, list[str]]:
    """One run, and the function of each instruction that it executed; these are wrong if the module is elsewhere."""
    code = Code.of(modules.uvm, where)
    archive = with_modules(modules)
    archive.file("program", program("service", modules.tree))
    steps = [
        *LOAD,
        *TELL_BASES,
        f"/program {rounds} >/dev/ttyS1 2>/dev/console; S=$?",
        *UNLOAD,
        "(exit $S)",
    ]
    names: list[str] = []
    with tempfile.TemporaryDirectory(prefix="mpsguard-count-") as directory:
        pipe = Path(directory) / "executed"
        os.mkfifo(pipe)
        reader = threading.Thread(target=lambda: names.extend(_executed(pipe, code)), daemon=True)
        reader.start()
        extra = (*CLOCK, "-singlestep", "-d", "exec,nochain", "-dfilter", code.filter, "-D", str(pipe))
        run = boot(kernel, archive, steps, deadline_s=DEADLINE_S, processors=1, extra=extra)
        reader.join(timeout=60.0)
    return run, names


def _executed(pipe: Path, code: Code) -> Iterator[str]:
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
                name = kept[address] = code.at(address)
            began = began or name in SM or name in COPY_ENGINE
            if began:
                yield name
