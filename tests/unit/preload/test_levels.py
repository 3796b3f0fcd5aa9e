"""The preload's files stand on levels: each calls its own level and lower ones, as their objects' symbols show."""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

from mpsguard.preload import build

ENTRANCE: Final = 6
LEVELS: Final = {
    "deepbind hook_table hooks hooks_contexts hooks_ipc hooks_ordered hooks_query interpose trampoline": ENTRANCE,
    # Answers to other processes.
    "ipc_export ipc_import service snapshot": 5,
    # The way to the driver, or to the second one.
    "calls wrappers": 5,
    # Decisions.
    "alone devices epoch move ordered placement recovery replay room takeover waiting": 4,
    # Memory.
    "region slab": 3,
    # What a takeover carries over.
    "ahead beside graphs host_memory logged memory memory_pools rebuild repeat spare translate variables warm": 3,
    # Bookkeeping under the lock.
    "capture claim host_reads pools registry request streams": 2,
    # State.
    "copies images limits log lookup mappings objects process roles takeover_state work zone_table": 1,
    # Facts.
    "counters ipc_socket lane layout peer reasons report settings steps uvm_zone": 0,
}
LEVEL_OF: Final = {name: level for names, level in LEVELS.items() for name in names.split()}


def symbols(source: Path, directory: Path) -> tuple[set[str], set[str]]:
    """Return what the object of a source file defines for others, and what it wants of them."""
    target = directory / f"{source.stem}.o"
    # A call that the compiler has no need for is an arrow all the same.
    command = ["gcc", *build.FLAGS, *build.PRELOAD.flags, "-O0", "-c", "-o", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    listed = subprocess.run(["nm", "-P", str(target)], capture_output=True, text=True, timeout=60, check=True)
    words = [line.split() for line in listed.stdout.splitlines()]
    return {w[0] for w in words if w[1] in "TBDRVW"}, {w[0] for w in words if w[1] == "U"}


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The files of which each file wants a symbol."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: the preload cannot be built")
    directory = tmp_path_factory.mktemp("objects")
    with ThreadPoolExecutor(2) as together:
        found = dict(
            zip(
                (source.stem for source in build.PRELOAD.sources),
                together.map(lambda source: symbols(source, directory), build.PRELOAD.sources),
                strict=True,
            )
        )
    owner = {symbol: name for name, (defined, _) in found.items() for symbol in defined}
    return {
        name: {owner[symbol] for symbol in wanted if symbol in owner} - {name} for name, (_, wanted) in found.items()
    }


def test_each_file_has_its_level(calls: dict[str, set[str]]) -> None:
    assert set(calls) == set(LEVEL_OF)


def test_calls_go_down(calls: dict[str, set[str]]) -> None:
    upwards = [
        f"{name} -> {other}" for name in calls for other in calls[name] if LEVEL_OF[name] < LEVEL_OF.get(other, 0)
    ]
    assert upwards == []


def test_below_the_entrance_there_is_no_circle(calls: dict[str, set[str]]) -> None:
    """A table of hooks has their addresses, and hooks ask the table: one circle, in `binding/` and at the entrance."""
    below = {name: calls[name] for name in calls if LEVEL_OF[name] < ENTRANCE}
    assert set(TopologicalSorter(below).static_order()) == set(below)
