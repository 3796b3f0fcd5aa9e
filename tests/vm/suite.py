"""The long measurements of the kernel module, one file in docs/results for each part; see `scripts/kmod-suite`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from kmod_patch.build import build
from kmod_patch.errors import KmodError
from kmod_patch.kernel import Headers
from kmod_patch.tree import BRANCHES as KNOWN_BRANCHES
from kmod_patch.tree import open_tree
from tests.gpu.core.errors import NotRunError, SuiteError
from tests.gpu.kmod import sinks
from tests.gpu.results.recorder import Recorder
from tests.gpu.results.schema import Peer
from tests.vm import instructions, sources, workshop
from tests.vm.guests import run_program
from tests.vm.machine import Run
from tests.vm.sources import Kernel

FAULTS = 10_000
FAULTS_A_RUN = 2500
MOST_RUNS = 20
MOST_COST = 0.0001
"""Of the path of a fault that is serviced: registers are allotted anew where a rule adds a call that is not made."""
GIVEN_BACK = ("chunks", "rm", "spaces", "channels")
DEADLINE_S = 1800.0
STRESS_DEADLINE_S = 2400.0
"""The program stops by itself long before, and then gives everything back."""
TESTS = "uvm_enable_builtin_tests=1"
NO_HMM, HMM = "uvm_disable_hmm=1", "uvm_disable_hmm=0"
NO_LOCKDEP = "lockdep.prove_locking=0"
"""The vendor's HMM calls mmu_interval_notifier_insert with the mmap lock held: lockdep takes that for a recursion, and
is silent from then on. So HMM is looked at by KASAN alone."""


def say(text: str) -> None:
    """What is being done."""
    sys.stderr.write(f"kmod-suite: {text}\n")


def ended_well(run: Run) -> bool:
    """Exit status 0, and nothing in the kernel's log; else the reason is told."""
    if run.status != 0 or run.trouble:
        say(f"status {run.status}; {'; '.join(run.trouble[:3]) or 'nothing in the log'}; {run.lines[-1:]}")
    return run.status == 0 and not run.trouble


def passed(run: Run) -> tuple[int, int]:
    """Cases that are ok, and all of them; none if the run did not end well."""
    cases = [line for line in run.lines if "case" in line]
    good = ended_well(run)
    return (sum(bool(case["ok"]) for case in cases) if good else 0), len(cases)


def record_cases(
    recorder: Recorder,
    kernel: Kernel,
    tree: Path,
    label: str,
    *,
    debug: bool = False,
    parameters: str = "",
    boot_with: str = "",
) -> None:
    """The cases with the patched module, the stock one beside it."""
    counts = {}
    for patched in (True, False):
        say(f"{label}: cases, {'patched' if patched else 'stock'}")
        modules = workshop.build(tree, kernel, patched=patched, debug=debug)
        run = run_program(
            kernel, modules, "scenario", parameters=f"{TESTS} {parameters}", boot_with=boot_with, deadline_s=DEADLINE_S
        )
        counts[patched] = passed(run)
    (ours, total), (stock, _) = counts[True], counts[False]
    recorder.row(
        f"{label}: cases passed",
        ours,
        count=total,
        unit="cases",
        bar=f"{total} of {total}; stock fails",
        holds=ours == total and stock < total,
        peer=Peer(name="stock module", value=stock, count=total),
    )


def record_builtin(recorder: Recorder, kernel: Kernel, tree: Path, label: str) -> None:
    """NVIDIA's own tests."""
    counts: dict[bool, tuple[int, int]] = {}
    for patched in (True, False):
        say(f"{label}: NVIDIA's tests, {'patched' if patched else 'stock'}")
        modules = workshop.build(tree, kernel, patched=patched)
        run = run_program(kernel, modules, "builtin", parameters=TESTS, deadline_s=DEADLINE_S)
        theirs = [line for line in run.lines if not line["builtin"].startswith("FAULT_ISOLATION")]
        counts[patched] = (sum(not line["result"] and not line["status"] for line in theirs), len(theirs))
    (ours, total), (stock, _) = counts[True], counts[False]
    recorder.row(
        f"{label}: NVIDIA's built-in UVM tests passed",
        ours,
        count=total,
        unit="tests",
        bar="as many as stock, all",
        holds=ours == stock == total > 0,
        peer=Peer(name="stock module", value=stock, count=total),
    )


def stress(kernel: Kernel, tree: Path, faults: int, seed: int, *, patched: bool) -> tuple[Run, dict[str, Any]]:
    """One run of random faults: it, and what it says of itself."""
    modules = workshop.build(tree, kernel, patched=patched)
    parameters = f"{TESTS} {NO_HMM} uvm_leak_checker=1"
    run = run_program(
        kernel, modules, "stress", str(faults), str(seed), parameters=parameters, deadline_s=STRESS_DEADLINE_S
    )
    return run, run.lines[-1] if run.lines else {"contained": 0, "killed": 0, "why": "no result"}


def record_stress(recorder: Recorder, kernel: Kernel, tree: Path, label: str, faults: int, *, machines: int) -> None:
    """Random faults, a part of them with each seed, until there were so many; and what was not given back."""
    workshop.build(tree, kernel, patched=True)
    contained = killed = left = runs = 0
    well = True
    while well and contained < faults and runs < MOST_RUNS:
        parts = min(machines, -(-(faults - contained) // FAULTS_A_RUN))
        part = min(FAULTS_A_RUN, -(-(faults - contained) // parts))
        say(f"{label}: random faults, {contained} of {faults} so far; now {part} in each of {parts} machines")
        with ThreadPoolExecutor(parts) as pool:
            one = partial(stress, kernel, tree, part, patched=True)
            each = list(pool.map(one, range(runs + 1, runs + parts + 1)))
        for run, result in each:
            well = ended_well(run) and well
            contained += int(result["contained"])
            killed += int(result["killed"])
            left += sum(result.get(f"{what}_after", 0) > result.get(f"{what}_before", 0) for what in GIVEN_BACK)
        runs += parts
    say(f"{label}: random faults, stock")
    stock, told = stress(kernel, tree, 50, 1, patched=False)
    fails = stock.status == 1
    say(f"{label}: the stock module: status {stock.status}, {told['why']}")
    recorder.row(
        f"{label}: random faults contained, 8 clients, 2 TSGs; {killed} clients killed meanwhile",
        contained,
        unit="faults",
        bar=f">= {faults}, no innocent hurt, no warning in the log, unload succeeds; stock fails",
        holds=well and contained >= faults and fails,
        runs=runs,
        peer=Peer(name="stock module", value=int(told["contained"])),
    )
    recorder.row(
        f"{label}: kinds of memory not given back after a run",
        left,
        unit="kinds",
        bar="0",
        holds=well and left == 0,
        runs=runs,
    )


def record_cost(recorder: Recorder, kernel: Kernel, tree: Path, label: str) -> None:
    """One row for each kind of fault: our instructions, the stock module's beside them."""
    modules = [workshop.build(tree, kernel, patched=patched) for patched in (True, False)]
    say(f"{label}: instructions, patched and stock")
    with ThreadPoolExecutor(len(modules)) as pool:
        ours, stock = pool.map(partial(instructions.count, kernel), modules)
    for kind in ours:
        mine, theirs, differing = instructions.compared(ours[kind], stock[kind])
        say(f"{label}: {kind}: {mine}, stock {theirs}; differing: {differing or 'none'}")
        recorder.row(
            f"{label}: instructions of the patch's own functions to service faults of {kind} on managed memory",
            instructions.own(ours[kind]),
            unit="instructions",
            bar="0",
            holds=instructions.own(ours[kind]) == 0,
            runs=len(ours[kind].calls),
        )
        recorder.row(
            f"{label}: instructions of nvidia-uvm to service a fault of {kind} on managed memory, waiting left out",
            mine,
            unit="instructions",
            bar=f"at most {MOST_COST:.2%} more than stock",
            holds=theirs > 0 and mine - theirs <= MOST_COST * theirs,
            runs=len(ours[kind].calls),
            peer=Peer(name="stock module", value=theirs),
        )


def record_branches(recorder: Recorder, kernel: Kernel, trees: list[Path]) -> None:
    """Whether the rules fit, and nvidia-uvm compiles, on trees given by path."""
    headers = Headers(kernel.release, kernel.output, kernel.source)
    done: dict[str, str] = {}
    for path in trees:
        say(f"{path}: apply and compile")
        try:
            tree = open_tree(path)
            with tempfile.TemporaryDirectory(prefix="mpsguard-kmod-") as output:
                build(tree, headers, Path(output), None)
            done[tree.branch] = tree.version
        except KmodError as error:
            say(f"{path}: {error}")
    versions = ", ".join(done[branch] for branch in KNOWN_BRANCHES if branch in done) or "none"
    recorder.row(
        f"branches on which every rule fits and nvidia-uvm compiles ({versions})",
        len(done),
        count=len(KNOWN_BRANCHES),
        unit="branches",
        bar=f"{len(KNOWN_BRANCHES)} of {len(KNOWN_BRANCHES)}",
        holds=len(done) == len(KNOWN_BRANCHES),
    )


def cases(recorder: Recorder, kernel: Kernel, parsed: argparse.Namespace) -> None:
    """Stock and patched, release and debug build, NVIDIA's tests."""
    chosen = parsed.branch or sources.BRANCHES
    for branch in chosen:
        tree = sources.driver_tree(branch)
        record_cases(recorder, kernel, tree, branch)
        record_builtin(recorder, kernel, tree, branch)
    for branch in chosen if parsed.debug else ():
        record_cases(recorder, kernel, sources.driver_tree(branch), f"{branch}, debug build", debug=True)


def faults(recorder: Recorder, kernel: Kernel, parsed: argparse.Namespace) -> None:
    """Random faults, on the newest branch; the tests have the oldest."""
    newest = sources.BRANCHES[-1]
    record_stress(recorder, kernel, sources.driver_tree(newest), newest, parsed.faults, machines=parsed.machines)


def sanitized(recorder: Recorder, kernel: Kernel, parsed: argparse.Namespace) -> None:
    """The cases and a tenth of the random faults on a kernel of one's own; with HMM, if it has that."""
    del kernel
    built, tree = sources.built_kernel(parsed.kernel), sources.driver_tree(sources.BRANCHES[-1])
    label = f"{sources.BRANCHES[-1]}, KASAN"
    record_cases(recorder, built, tree, f"{label} and lockdep", parameters=NO_HMM)
    record_cases(recorder, built, tree, f"{label}, with HMM", parameters=HMM, boot_with=NO_LOCKDEP)
    record_stress(recorder, built, tree, f"{label} and lockdep", parsed.faults // 10, machines=parsed.machines)


def cost(recorder: Recorder, kernel: Kernel, parsed: argparse.Namespace) -> None:
    """Instructions executed to service a fault that is none of the patch's business."""
    for branch in parsed.branch or sources.BRANCHES:
        record_cost(recorder, kernel, sources.driver_tree(branch), branch)


def branches(recorder: Recorder, kernel: Kernel, parsed: argparse.Namespace) -> None:
    """Every tree there is, of Debian and by path."""
    record_branches(recorder, kernel, [*map(sources.driver_tree, sources.BRANCHES), *parsed.trees])


def hardware() -> int:
    """The questions that only a GPU answers; on a machine that has loaded the patched module."""
    recorder = Recorder(suite="kmod-hardware", script="scripts/kmod-suite hardware")
    try:
        sinks.run(recorder, say)
    except (NotRunError, SuiteError) as error:
        say(f"hardware: {error}")
        return 3
    say(str(recorder.write()))
    return 0


PARTS = {"cases": cases, "faults": faults, "sanitized": sanitized, "branches": branches, "cost": cost}


def main(arguments: list[str] | None = None) -> int:
    """Measure and write one file for each part; 3 if something that is needed is not here."""
    parser = argparse.ArgumentParser(prog="kmod-suite", description=__doc__)
    parser.add_argument("part", choices=[*PARTS, "hardware"])
    parser.add_argument("trees", type=Path, nargs="*", metavar="TREE", help="branches: more driver trees")
    parser.add_argument(
        "--branch", action="append", choices=sources.BRANCHES, help="cases, cost: this branch only; can be given again"
    )
    parser.add_argument("--kernel", type=Path, help="sanitized: a built kernel tree with KASAN and PROVE_LOCKING")
    parser.add_argument("--debug", action="store_true", help="cases: also with UVM's debug build")
    parser.add_argument("--faults", type=int, default=FAULTS, help=f"random faults (default {FAULTS})")
    parser.add_argument("--machines", type=int, default=1, choices=range(1, 9), help="faults: virtual machines at once")
    parsed = parser.parse_args(arguments)
    if parsed.part == "sanitized" and parsed.kernel is None:
        parser.error("sanitized needs --kernel TREE")
    if parsed.part == "hardware":
        return hardware()
    reason = sources.missing("linux", *(f"nvidia-{branch}" for branch in sources.BRANCHES))
    if reason is not None:
        say(reason)
        return 3
    recorder = Recorder(suite=f"kmod-{parsed.part}", script=f"scripts/kmod-suite {parsed.part}")
    PARTS[parsed.part](recorder, sources.debian_kernel(), parsed)
    say(str(recorder.write()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
