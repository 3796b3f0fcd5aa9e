"""The rows of the kernel module's measurements: what is run in a virtual machine, and what is made of its answers."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from kmod_patch.errors import KmodError
from kmod_patch.tree import BRANCHES as KNOWN_BRANCHES
from kmod_patch.tree import open_tree
from tests.bench.results.recorder import Recorder
from tests.bench.results.schema import Peer
from tests.vm import campaign, instructions, recycled, workshop
from tests.vm.compiled import compile_all, compile_each
from tests.vm.guests import run_program
from tests.vm.machine import Run
from tests.vm.sources import Kernel

FAULTS_A_RUN = 2500
MOST_RUNS = 20
MOST_COST = 0.0001
"""Of the path of a fault that is serviced: registers are allotted anew where a rule adds a call that is not made."""
GIVEN_BACK = ("chunks", "rm", "spaces", "channels")
DEADLINE_S = 1800.0
STRESS_DEADLINE_S = 2400.0
"""The program stops by itself long before, and then gives everything back."""
TESTS = "uvm_enable_builtin_tests=1"
NO_HMM = "uvm_disable_hmm=1"


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
        for case in run.lines if patched else ():
            if not case.get("ok", True):
                say(f"{label}: {case['case']}: {case['why']}")
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
        run = run_program(kernel, modules, "builtin", "all", parameters=TESTS, deadline_s=DEADLINE_S)
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
    """For each kind of fault: our own instructions, and all, the stock module's beside them; then a contained fault."""
    modules = [workshop.build(tree, kernel, patched=patched) for patched in (True, False)]
    say(f"{label}: instructions, patched and stock")
    with ThreadPoolExecutor(len(modules)) as pool:
        ours, stock = pool.map(partial(instructions.count, kernel), modules)
    for kind, service in ours.serviced.items():
        mine, theirs, differing = instructions.compared(service, stock.serviced[kind])
        say(f"{label}: {kind}: {mine}, stock {theirs}; differing: {differing or 'none'}")
        recorder.row(
            f"{label}: instructions of the patch's own functions to service faults of {kind} on managed memory",
            instructions.own(service),
            unit="instructions",
            bar="0",
            holds=instructions.own(service) == 0 < len(service.calls),
            runs=len(service.calls),
        )
        recorder.row(
            f"{label}: instructions of nvidia-uvm to service a fault of {kind} on managed memory, waiting left out",
            mine,
            unit="instructions",
            bar=f"at most {MOST_COST:.2%} more than stock",
            holds=theirs > 0 and mine - theirs <= MOST_COST * theirs,
            runs=len(service.calls),
            peer=Peer(name="stock module", value=theirs),
        )
    seen = instructions.own(ours.contained)
    recorder.row(
        f"{label}: instructions of the patch's own functions to contain a fault, counted in the same run",
        seen,
        unit="instructions",
        bar="> 0: the count sees them",
        holds=seen > 0,
    )


def record_branches(recorder: Recorder, kernel: Kernel, trees: list[Path]) -> None:
    """Whether the rules fit, and nvidia-uvm compiles, on trees given by path."""
    done: dict[str, str] = {}
    for path in trees:
        say(f"{path}: apply and compile")
        try:
            tree = open_tree(path)
        except KmodError as error:
            say(f"{path}: {error}")
            continue
        if (why := compile_all(tree, kernel)) is None:
            done[tree.branch] = tree.version
        else:
            say(f"{path}: {why}")
    versions = ", ".join(done[branch] for branch in KNOWN_BRANCHES if branch in done) or "none"
    recorder.row(
        f"branches on which every rule fits and nvidia-uvm compiles ({versions})",
        len(done),
        count=len(KNOWN_BRANCHES),
        unit="branches",
        bar=f"{len(KNOWN_BRANCHES)} of {len(KNOWN_BRANCHES)}",
        holds=len(done) == len(KNOWN_BRANCHES),
    )


def record_series(recorder: Recorder, kernel: Kernel, path: Path) -> None:
    """Whether nvidia-uvm compiles after each patch of the series for the vendor's repository."""
    tree = open_tree(path)
    say(f"{tree.version}: compile after each patch of the series")
    done, total, why = compile_each(tree, kernel)
    if why is not None:
        say(f"{tree.version}: {why}")
    recorder.row(
        f"{tree.version}: patches of the series after which nvidia-uvm compiles",
        done,
        count=total,
        unit="patches",
        bar=f"{total} of {total}",
        holds=done == total,
    )


def record_campaign(recorder: Recorder, kernel: Kernel, tree: Path, label: str) -> None:
    """An overrun of a GiB, a million wild pointers, three offenders at once."""
    say(f"{label}: an overrun of a GiB, a million pointers, three offenders")
    found = campaign.run_campaign(kernel, tree)
    well = ended_well(found.run)
    overrun, pointers, offenders = found.overrun, found.pointers, found.offenders
    say(f"{label}: {overrun}; {pointers}; {offenders}")
    recorder.row(
        f"{label}: overrun of {campaign.OVERRUN_MIB} MiB: time in the virtual machine",
        overrun["ms"] / 1000,
        unit="s",
        bar=f"< {campaign.OVERRUN_MS // 1000} s, group alive",
        holds=well and overrun["alive"] and overrun["ms"] < campaign.OVERRUN_MS,
    )
    for name, part in (("overrun", overrun), (f"{campaign.POINTERS:,} random pointers over 1 TiB", pointers)):
        recorder.row(
            f"{label}: {name}: sinks at its end ({part['faults']:,} faults, {part['kib']:,} KiB)",
            part["sinks"],
            unit="sinks",
            bar=f"<= {campaign.MOST_SINKS}, group alive",
            holds=well and part["alive"] and part["sinks"] <= campaign.MOST_SINKS,
        )
    recorder.row(
        f"{label}: three offenders at once: from its kernel's begin until the last one is named",
        offenders["named_within_ms"],
        unit="ms of the virtual machine",
        bar=f"all contained and named, <= {campaign.NAMED_MS} ms",
        holds=well and offenders["alive"] and offenders["named_within_ms"] <= campaign.NAMED_MS,
    )
    recorder.row(
        f"{label}: rounds of an innocent client meanwhile",
        offenders["rounds"],
        unit="rounds",
        bar=f">= {campaign.LEAST_ROUNDS:.0%} of those beside three clients that do nothing wrong",
        holds=well and found.share >= campaign.LEAST_ROUNDS,
        peer=Peer(name="beside three that do nothing wrong", value=offenders["rounds_calm"]),
    )


def record_pids(recorder: Recorder, kernel: Kernel, tree: Path, label: str, pids: int, *, machines: int) -> None:
    """Pids given away before the sensor reads the list; a part of them in each of so many machines."""
    modules = workshop.build(tree, kernel, patched=True)
    parts = [pids // machines + (number < pids % machines) for number in range(machines)]
    say(f"{label}: {pids} pids given away, in {machines} machines")
    with ThreadPoolExecutor(machines) as pool:
        runs = list(pool.map(partial(recycled.give_away, kernel, modules), parts))
    good = [ended_well(run) for run in runs]
    well = all(good)
    for run, fine in zip(runs, good, strict=True):
        if not fine:
            say(f"{label}: {run.console[-2000:]}")
    told = [line for run in runs for line in run.lines]
    say(f"{label}: {told}")
    contained, away, wrong, proven = (
        sum(int(facts[what]) for facts in told) for what in ("contained", "given away", "wrong", "proven")
    )
    recorder.row(
        f"{label}: wrong names over pids given away, of owners that faulted or had clients that did",
        wrong,
        count=away,
        unit="names",
        bar=f"0 of {pids}, each fault contained, no warning in the log",
        holds=well and wrong == 0 and contained == away == pids,
        runs=machines,
    )
    wanted = sum(map(recycled.proofs, parts))
    recorder.row(
        f"{label}: faults of clients of the guard that ended, and that are named all the same",
        proven,
        count=wanted,
        unit="faults",
        bar=f"{wanted} of {wanted}",
        holds=well and proven == wanted,
        runs=machines,
    )
