"""An error, or the end of process or machine, at any system call: the previous image is whole, and all can go on."""

from __future__ import annotations

import errno
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from mpsguard.images.store.errors import ImageError, StoreFailedError, StoreFullError
from mpsguard.images.store.pieces import digest_of
from mpsguard.images.store.store import ImageStore
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.unit.images.store import fault_scenarios, fs_faults
from tests.unit.images.store.fault_scenarios import OPERATIONS, calls, copied, prepare, wrong
from tests.unit.images.store.fs_faults import Faults
from tests.unit.images.store.samples import commit, content, some_bytes


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prepared") / "store"
    prepare(path)
    return path


@pytest.mark.parametrize(
    ("kind", "operation"),
    [
        ("kill", "make"),
        ("kill", "remove"),
        ("kill", "collect"),
        ("kill", "commit"),
        ("power", "commit"),
        ("power", "make"),
    ],
)
def test_the_end_of_process_or_machine_at_any_call(kind: str, operation: str) -> None:
    # In a process of its own, since it forks.
    command = [sys.executable, "-m", fault_scenarios.__name__, kind, operation]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    count, _, rest = done.stdout.partition(" ")
    assert int(count) > 10
    assert rest == "calls, 0 bad\n"


@pytest.mark.parametrize(
    ("operation", "number", "kind"),
    [
        *((operation, errno.EIO, StoreFailedError) for operation in OPERATIONS),
        *((operation, errno.ENOSPC, StoreFullError) for operation in ("make", "commit")),
    ],
)
def test_an_error_of_any_call(prepared: Path, operation: str, number: int, kind: type[ImageError]) -> None:
    raised = 0
    for at, name in enumerate(calls(prepared, operation)):
        faults = Faults(at, fs_faults.error(number))
        with copied(prepared) as path:
            before = open_descriptors()
            try:
                with faults.armed():
                    OPERATIONS[operation](path)
            except kind:  # and no other one
                raised += 1
            assert opened_since(before) == [], (at, name)
            assert wrong(path, operation) == [], (at, name)
    assert raised > 5


def test_what_power_took_from_an_abandoned_draft_is_written_again(prepared: Path) -> None:
    left = digest_of(fault_scenarios.NEW["left"])
    for cut_off in (b"", fault_scenarios.NEW["left"][:-1], bytes(len(fault_scenarios.NEW["left"]))):
        with copied(prepared) as path:
            (path / "pieces" / left[:2] / left).write_bytes(cut_off)
            OPERATIONS["commit"](path)
            assert wrong(path, "commit") == []


def test_two_that_collect_and_commit_at_once(prepared: Path) -> None:
    """Many times, in processes of their own: no image loses a piece."""
    program = (
        "import sys, pathlib; from tests.unit.images.store.fault_scenarios import OPERATIONS;"
        "[OPERATIONS[sys.argv[1]](pathlib.Path(sys.argv[2])) for _ in range(40)]"
    )
    with copied(prepared) as path:
        processes = [
            subprocess.Popen([sys.executable, "-c", program, operation, str(path)])
            for operation in ("commit", "collect", "commit", "collect")
        ]
        assert [process.wait(100) for process in processes] == [0, 0, 0, 0]
        assert wrong(path, "commit") == []


@pytest.mark.soak
def test_drafts_and_collectors_that_are_killed_at_random(prepared: Path) -> None:
    """A thousand processes, four at a time, each killed at some moment or left to end."""
    generator = random.Random(1)
    program = (
        "import sys, pathlib; from tests.unit.images.store.fault_scenarios import OPERATIONS;"
        "sys.stdout.write('.'); sys.stdout.flush();"
        "[OPERATIONS[sys.argv[1]](pathlib.Path(sys.argv[2])) for _ in range(10)]"
    )
    with copied(prepared) as path:
        for _ in range(250):
            operations = generator.choices(["commit", "collect"], k=4)
            processes = [
                subprocess.Popen([sys.executable, "-c", program, operation, str(path)], stdout=subprocess.PIPE)
                for operation in operations
            ]
            for process in processes:
                assert process.stdout is not None
                assert process.stdout.read(1) == b"."
                if generator.random() < 0.7:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(generator.random() / 10)
                    process.kill()
            ends = [process.wait(100) for process in processes]
            for process in processes:
                assert process.stdout is not None
                process.stdout.close()
            assert set(ends) <= {0, -signal.SIGKILL}
        assert wrong(path, "commit") == []


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_piece_that_another_draft_commits_meanwhile_stays_on_disk_and_counts_once(
    tmp_path: Path, *, is_damaged: bool
) -> None:
    piece = some_bytes("piece", 2000)

    def put(path: Path, faults: Faults) -> None:
        with ImageStore(path) as store, store.begin("second") as draft, faults.armed():
            draft.put(piece)

    def prepare(path: Path) -> None:
        with ImageStore(path) as store:
            commit(store, "before", {"r": piece if is_damaged else b"x"})
            if is_damaged:
                (kept,) = (path / "pieces").glob("*/*")
                kept.chmod(0o600)
                kept.write_bytes(b"y" * len(piece))

    prepare(tmp_path / "counted")
    counted = Faults()
    put(tmp_path / "counted", counted)
    written = counted.seen.index("posix_fadvise")

    def commit_first(name: str, _arguments: tuple[object, ...]) -> None:
        assert name == "posix_fadvise"
        with ImageStore(tmp_path / "store") as store:
            commit(store, "first", {"r": piece})

    prepare(tmp_path / "store")
    put(tmp_path / "store", Faults(written, commit_first))
    found = {path.name: path.stat() for path in (tmp_path / "store" / "pieces").glob("*/*")}
    assert not found[digest_of(piece)].st_mode & 0o200
    assert int((tmp_path / "store" / "stored").read_text()) == sum(each.st_size for each in found.values())
    with ImageStore(tmp_path / "store") as store:
        assert content(store, "first") == {"r": piece}
