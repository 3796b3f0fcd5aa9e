"""Operations on a store that are interrupted at every system call, and what has to be so afterwards.

    python -m tests.unit.images.store.fault_scenarios kill|power OPERATION

ends a process at each call of OPERATION in turn, and prints what is wrong after it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mpsguard.images.store.manifest import Manifest, RegionImage
from mpsguard.images.store.pieces import digest_of
from mpsguard.images.store.store import ImageStore
from tests.unit.images.store import fs_faults
from tests.unit.images.store.fs_faults import Faults
from tests.unit.images.store.samples import commit, content, put_region, some_bytes

MEMORY: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where fsync costs nothing: what it would have kept, the faults know by themselves."""

OLD: Final = {"same": some_bytes("same", 500), "old": some_bytes("old", 300)}
NEW: Final = {"same": OLD["same"], "new": some_bytes("new", 300), "left": some_bytes("left", 200)}
OTHER: Final = {"other": some_bytes("other", 100), "same": OLD["same"]}


def prepare(path: Path) -> None:
    """Make a store with two images, and one piece that an abandoned draft left."""
    with ImageStore(path) as store:
        commit(store, "a", OLD)
        commit(store, "b", OTHER)
        with store.begin("c") as draft:
            draft.put(NEW["left"])


def _make(path: Path) -> None:
    with ImageStore(path / "another"):
        pass


def _commit(path: Path) -> None:
    """By all ways: a piece that is there, one that is new, one that was left, one that was only found."""
    with ImageStore(path) as store, store.begin("a") as draft:
        assert draft.has(digest_of(OLD["same"]))
        same = RegionImage("same", (len(OLD["same"]),), (digest_of(OLD["same"]),))
        draft.commit(Manifest.made_now("s", (same, *(put_region(draft, name, NEW[name]) for name in ("new", "left")))))


def _remove(path: Path) -> None:
    with ImageStore(path) as store:
        store.remove("a")


def _collect(path: Path) -> None:
    with ImageStore(path) as store:
        store.collect()


OPERATIONS: Final[dict[str, Callable[[Path], None]]] = {
    "make": _make,
    "commit": _commit,
    "remove": _remove,
    "collect": _collect,
}


def wrong(path: Path, operation: str) -> list[str]:
    """Say what is not as it has to be, after an operation that failed or was cut off at any place."""
    found = []
    with ImageStore(path) as store:
        expected = {"remove": ([], ["a"]), "commit": (["a"],)}.get(operation, (["a"],))
        names = store.names()
        if [name for name in names if name != "b"] not in expected:
            found.append(f"images {names}")
        if "a" in names and content(store, "a") not in ((OLD, NEW) if operation == "commit" else (OLD,)):
            found.append("a is neither the old nor the new image")
        if content(store, "b") != OTHER:
            found.append("b is another one")
        store.collect()
        needed = {digest for name in names for digest in _needed(store, name)}
        there = {each.name for each in (path / "pieces").rglob("*") if each.is_file()}
        if there != needed:
            found.append(f"{len(there - needed)} pieces too many, {len(needed - there)} missing")
        left = [str(each) for kind in ("drafts", "removed") for each in (path / kind).iterdir()]
        stored = int((path / "stored").read_text())
        if left or stored != sum(each.stat().st_size for each in (path / "pieces").rglob("*") if each.is_file()):
            found.append(f"left: {left}; {stored} bytes counted")
    _make(path)
    _commit(path)
    with ImageStore(path) as store:
        if content(store, "a") != NEW:
            found.append("it cannot be committed again")
    return found


def _needed(store: ImageStore, name: str) -> set[str]:
    with store.open(name) as image:
        return set(image.manifest.pieces())


@contextmanager
def copied(prepared: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="images-", dir=MEMORY) as directory:
        path = Path(directory) / "store"
        shutil.copytree(prepared, path, ignore=shutil.ignore_patterns("another"))
        yield path


def calls(prepared: Path, operation: str) -> list[str]:
    """The calls that an operation makes."""
    faults = Faults()
    with copied(prepared) as path, faults.armed():
        OPERATIONS[operation](path)
    return faults.seen


def interrupted(prepared: Path, operation: str, at: int, *, power: bool) -> list[str]:
    """End a process at a call; say what is wrong then."""
    with copied(prepared) as path:
        before = {each.lstat().st_ino for each in [path, *path.rglob("*")]}

        def end(name: str, arguments: tuple[object, ...]) -> None:
            if power:
                fs_faults.lose(path, before, faults)
            fs_faults.kill(name, arguments)

        faults = Faults(at, end)
        child = os.fork()
        if not child:
            with faults.armed():
                OPERATIONS[operation](path)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            return ["it was not killed"]
        return wrong(path, operation)


def main(kind: str, operation: str) -> int:
    with tempfile.TemporaryDirectory(prefix="images-", dir=MEMORY) as directory:
        prepared = Path(directory) / "store"
        prepare(prepared)
        names = calls(prepared, operation)
        bad = 0
        for at, name in enumerate(names):
            found = interrupted(prepared, operation, at, power=kind == "power")
            bad += bool(found)
            for text in found:
                sys.stdout.write(f"{operation}, {kind} at call {at} ({name}): {text}\n")
        sys.stdout.write(f"{len(names)} calls, {bad} bad\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
