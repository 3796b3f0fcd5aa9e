"""The long measurements of the kernel module, one file in docs/results for each part; see `scripts/kmod-suite`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kmod_patch.errors import KmodError
from kmod_patch.tree import open_tree
from tests.bench.core.errors import NotRunError, SuiteError
from tests.bench.kmod import sinks
from tests.bench.kmod.rows import (
    NO_HMM,
    record_branches,
    record_builtin,
    record_campaign,
    record_cases,
    record_cost,
    record_pids,
    record_series,
    record_stress,
    say,
)
from tests.bench.results.recorder import Recorder
from tests.bench.results.schema import ResultError
from tests.vm import sources, workshop
from tests.vm.sources import Kernel

FAULTS = 10_000
PIDS = 10_000
HMM = "uvm_disable_hmm=0"
NO_LOCKDEP = "lockdep.prove_locking=0"
"""The vendor's HMM calls mmu_interval_notifier_insert with the mmap lock held: lockdep takes that for a recursion, and
is silent from then on. So HMM is looked at by KASAN alone."""


def cases(recorder: Recorder, kernel: Kernel, parsed: argparse.Namespace) -> None:
    """Stock and patched, release and debug build, NVIDIA's tests."""
    chosen = parsed.branch or sources.BRANCHES
    for branch in chosen:
        tree = sources.driver_tree(branch)
        record_cases(recorder, kernel, tree, branch)
        record_builtin(recorder, kernel, tree, branch)
        recorder.write()
    for branch in chosen if parsed.debug else ():
        record_cases(recorder, kernel, sources.driver_tree(branch), f"{branch}, debug build", debug=True)


def _debug_cases(recorder: Recorder, kernel: Kernel, tree: Path, version: str) -> None:
    record_cases(recorder, kernel, tree, f"{version}, debug build", debug=True)


def trees(recorder: Recorder, kernel: Kernel, parsed: argparse.Namespace) -> None:
    """The same for trees given by path, the cases first; a tree that cannot be built is told, and has no row.

    With --debug the cases with UVM's debug build, and these alone.
    """
    for record in (_debug_cases,) if parsed.debug else (record_cases, record_builtin):
        for path in parsed.trees:
            try:
                tree = open_tree(path)
                record(recorder, kernel, tree.root, tree.version)
            except (KmodError, workshop.BuildError) as error:
                say(f"{path}: {error}")
                continue
            recorder.write()


def _given(paths: list[Path]) -> list[tuple[Path, str]]:
    """The trees, and what rows call them; the newest of Debian's without any."""
    newest = sources.BRANCHES[-1]
    given = [(tree.root, tree.version) for tree in map(open_tree, paths)]
    return given or [(sources.driver_tree(newest), newest)]


def faults(recorder: Recorder, kernel: Kernel, parsed: argparse.Namespace) -> None:
    """Random faults, on the newest branch or on trees given by path; the tests have the oldest branch."""
    for tree, name in _given(parsed.trees):
        record_stress(recorder, kernel, tree, name, parsed.faults, machines=parsed.machines)
        recorder.write()


def pids(recorder: Recorder, kernel: Kernel, parsed: argparse.Namespace) -> None:
    """Pids given away, on the newest branch."""
    newest = sources.BRANCHES[-1]
    record_pids(recorder, kernel, sources.driver_tree(newest), newest, parsed.pids, machines=parsed.machines)


def sanitized(recorder: Recorder, kernel: Kernel, parsed: argparse.Namespace) -> None:
    """The cases and a tenth of the random faults on a kernel of one's own; with HMM, if it has that."""
    del kernel
    built = sources.built_kernel(parsed.kernel)
    for tree, name in _given(parsed.trees):
        label = f"{name}, KASAN"
        record_cases(recorder, built, tree, f"{label}, with HMM", parameters=HMM, boot_with=NO_LOCKDEP)
        recorder.write()
        record_cases(recorder, built, tree, f"{label} and lockdep", parameters=NO_HMM)
        recorder.write()
        record_stress(recorder, built, tree, f"{label} and lockdep", parsed.faults // 10, machines=parsed.machines)
        recorder.write()


def cost(recorder: Recorder, kernel: Kernel, parsed: argparse.Namespace) -> None:
    """Instructions executed to service a fault that is none of the patch's business."""
    for branch in parsed.branch or sources.BRANCHES:
        record_cost(recorder, kernel, sources.driver_tree(branch), branch)
        recorder.write()


def branches(recorder: Recorder, kernel: Kernel, parsed: argparse.Namespace) -> None:
    """Every tree there is, of Debian and by path."""
    record_branches(recorder, kernel, [*map(sources.driver_tree, sources.BRANCHES), *parsed.trees])


def each_patch(recorder: Recorder, kernel: Kernel, parsed: argparse.Namespace) -> None:
    """The series, on every tree there is, of Debian and by path."""
    for tree in [*map(sources.driver_tree, parsed.branch or sources.BRANCHES), *parsed.trees]:
        record_series(recorder, kernel, tree)
        recorder.write()


def campaigns(recorder: Recorder, kernel: Kernel, parsed: argparse.Namespace) -> None:
    """What takes long on the patched module, on the newest branch or those that are named."""
    for branch in parsed.branch or sources.BRANCHES[-1:]:
        record_campaign(recorder, kernel, sources.driver_tree(branch), branch)
        recorder.write()


def suite(parsed: argparse.Namespace) -> str:
    """Return the suite that the result is of: what trees add to a part does not replace what is known of Debian's."""
    if parsed.part == "trees" and parsed.debug:
        return "kmod-trees-debug"
    added = parsed.trees and parsed.part in {"faults", "sanitized", "series"}
    return f"kmod-{parsed.part}-trees" if added else f"kmod-{parsed.part}"


def command(parsed: argparse.Namespace) -> str:
    """Return the command that measures the same again; paths of this machine are left out."""
    words = ["scripts/kmod-suite", parsed.part]
    words += [f"--branch {branch}" for branch in parsed.branch or ()]
    words += ["--kernel KERNEL"] if parsed.kernel else []
    words += ["--debug"] if parsed.debug else []
    words += [f"--faults {parsed.faults}"] if parsed.faults != FAULTS else []
    words += [f"--pids {parsed.pids}"] if parsed.pids != PIDS else []
    return " ".join([*words, *("TREE" for _ in parsed.trees)])


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


PARTS = {
    "cases": cases,
    "trees": trees,
    "faults": faults,
    "pids": pids,
    "campaign": campaigns,
    "sanitized": sanitized,
    "branches": branches,
    "series": each_patch,
    "cost": cost,
}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return what is asked for; ends the process if that is nothing there is."""
    parser = argparse.ArgumentParser(prog="kmod-suite", description=__doc__)
    parser.add_argument("part", choices=[*PARTS, "hardware"])
    parser.add_argument(
        "trees",
        type=Path,
        nargs="*",
        metavar="TREE",
        help="trees, faults, sanitized: driver trees; branches, series: more of them",
    )
    parser.add_argument(
        "--branch",
        action="append",
        choices=sources.BRANCHES,
        help="cases, cost, campaign, series: this branch only; can be given again",
    )
    parser.add_argument("--kernel", type=Path, help="sanitized: a built kernel tree with KASAN and PROVE_LOCKING")
    parser.add_argument("--debug", action="store_true", help="cases: also with UVM's debug build; trees: with it alone")
    parser.add_argument("--faults", type=int, default=FAULTS, help=f"random faults (default {FAULTS})")
    parser.add_argument("--pids", type=int, default=PIDS, help=f"pids that are given away (default {PIDS})")
    parser.add_argument("--machines", type=int, default=1, choices=range(1, 9), help="faults, pids: machines at once")
    # `sanitized --kernel KERNEL TREE`: a tree can come after an option, which parse_args takes for a mistake.
    parsed = parser.parse_intermixed_args(arguments)
    if parsed.part == "sanitized" and parsed.kernel is None:
        parser.error("sanitized needs --kernel TREE")
    if parsed.part == "trees" and not parsed.trees:
        parser.error("trees needs at least one TREE")
    return parsed


def main(arguments: list[str] | None = None) -> int:
    """Measure and write one file for each part; 3 if something that is needed is not here."""
    parsed = parse(arguments)
    if parsed.part == "hardware":
        return hardware()
    reason = sources.missing("linux", *(f"nvidia-{branch}" for branch in sources.BRANCHES))
    if reason is not None:
        say(reason)
        return 3
    recorder = Recorder(suite=suite(parsed), script=command(parsed))
    PARTS[parsed.part](recorder, sources.debian_kernel(), parsed)
    try:
        say(str(recorder.write()))
    except ResultError as error:
        say(f"nothing was measured: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
