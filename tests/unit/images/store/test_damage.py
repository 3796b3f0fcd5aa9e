"""What is on the disk is not believed: flipped bits, torn files, a full disk, other users, links out of the store."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from mpsguard.images.store import store_files
from mpsguard.images.store.errors import (
    DamagedError,
    ForeignStoreError,
    ImageError,
    StoreBusyError,
    StoreFailedError,
    StoreFullError,
)
from mpsguard.images.store.pieces import PIECE_SIZE
from mpsguard.images.store.store import ImageStore
from tests.harness.descriptors_left import descriptors_left
from tests.unit.images.store.samples import commit, content, put_region, some_bytes

REGIONS = {"weights": some_bytes("weights", PIECE_SIZE + 500), "state": some_bytes("state", 60)}
NOBODY = 65534
ROOT = os.geteuid() == 0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ImageStore]:
    with ImageStore(tmp_path / "store") as made:
        commit(made, "a", REGIONS, b"state")
        yield made


def files_of(store: ImageStore, kind: str) -> list[Path]:
    return sorted(path for path in (store.directory / kind).rglob("*") if path.is_file())


def change(path: Path, data: bytes) -> None:
    mode = path.stat().st_mode
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(mode)


def test_a_flipped_bit_in_a_file_of_any_kind_is_never_data(store: ImageStore) -> None:
    for kind in ("pieces", "images", ".", "removed"):
        commit(store, "replaced", {"r": b"old"})
        with store.open("replaced"):
            commit(store, "replaced", {"r": b"new"})
            for path in files_of(store, kind):
                data = path.read_bytes()
                for place in {0, len(data) // 2, len(data) - 1} if data else set():
                    broken = bytearray(data)
                    broken[place] ^= 4
                    change(path, bytes(broken))
                    try:
                        with ImageStore(store.directory) as again, again.open("a") as image:
                            damages = list(image.verify())
                            assert [damage.digest for damage in damages] == [path.name] * len(damages)
                            assert damages or content(again, "a") == REGIONS
                    except ImageError:
                        pass
                    change(path, data)
        store.collect()


@pytest.mark.parametrize("size", [0, 100, PIECE_SIZE + 1])
def test_a_torn_piece_is_named_with_its_region(store: ImageStore, size: int) -> None:
    with store.open("a") as image:
        digest = image.manifest.regions[0].pieces[0]
        assert digest is not None
        path = store.directory / "pieces" / digest[:2] / digest
        change(path, (path.read_bytes() + b"x")[:size])
        with pytest.raises(DamagedError, match=f"image a: piece {digest} of region weights is damaged") as error:
            image.read_into(digest, bytearray(PIECE_SIZE))
        assert (error.value.digest, error.value.region) == (digest, "weights")
    with pytest.raises(AssertionError):
        content(store, "a")
    # The next image that has this piece heals the first one, too.
    commit(store, "b", REGIONS)
    assert content(store, "a") == content(store, "b") == REGIONS


@pytest.mark.parametrize(("index", "most"), [(0, PIECE_SIZE), (0, 300_000), (1, PIECE_SIZE), (1, 7)])
def test_a_file_that_is_longer_or_shorter_is_told_without_its_digest(
    store: ImageStore, monkeypatch: pytest.MonkeyPatch, index: int, most: int
) -> None:
    """Also where the kernel reads less than it is asked for."""
    preadv = os.preadv

    def some(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        first, *others = buffers
        return preadv(fd, [first[:most], *(others if len(first) <= most else ())], offset)

    monkeypatch.setattr(os, "preadv", some)
    with store.open("a") as image:
        digest = image.manifest.regions[0].pieces[index]
        assert digest is not None
        path = store.directory / "pieces" / digest[:2] / digest
        whole = path.read_bytes()
        size = len(whole)
        for data in (whole + b"x", whole[:-1], whole * 2, b""):
            change(path, data)
            with pytest.raises(DamagedError, match=f"piece {digest} of region weights is damaged"):
                image.read_into(digest, bytearray(size), checked=False)
        change(path, whole)
        content = bytearray(size)
        image.read_into(digest, content, checked=False)
        assert content == whole


def test_a_fifo_in_the_place_of_a_piece_keeps_what_is_in_it(store: ImageStore) -> None:
    (path,) = (path for path in files_of(store, "pieces") if path.stat().st_size == 60)
    path.unlink()
    os.mkfifo(path)
    fifo = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(fifo, REGIONS["state"])
        with store.open("a") as image:
            (damage,) = image.verify()
            assert (damage.digest, damage.reason) == (path.name, "cannot be read: Illegal seek")
        assert os.read(fifo, 100) == REGIONS["state"]
    finally:
        os.close(fifo)


@pytest.mark.root
@pytest.mark.skipif(not ROOT, reason="makes a device: only root may")
def test_a_device_in_the_place_of_a_piece(store: ImageStore) -> None:
    (path,) = (path for path in files_of(store, "pieces") if path.stat().st_size == 60)
    path.unlink()
    try:
        os.mknod(path, stat.S_IFCHR | 0o400, Path("/dev/zero").stat().st_rdev)
    except PermissionError as error:
        pytest.skip(f"no device can be made here: {error}")
    with store.open("a") as image, pytest.raises(DamagedError):
        image.read_into(path.name, bytearray(60), checked=False)


def test_a_missing_piece(store: ImageStore) -> None:
    lost = min(files_of(store, "pieces"), key=lambda path: path.stat().st_size)
    lost.unlink()
    with store.open("a") as image:
        (damage,) = image.verify()
        assert (damage.digest, damage.region, damage.reason) == (lost.name, "state", "is missing")
    commit(store, "b", REGIONS)
    assert content(store, "a") == REGIONS


def test_nothing_is_collected_while_it_is_unknown_what_is_needed(store: ImageStore) -> None:
    manifest = store.directory / "images" / "a.json"
    data = manifest.read_bytes()
    change(manifest, data[:-1])
    with pytest.raises(DamagedError, match="image a: its manifest is damaged"):
        store.collect()
    change(manifest, data)
    assert content(store, "a") == REGIONS


def link_to_a_file(path: Path) -> None:
    path.symlink_to(__file__)


def link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [link_to_a_file, link_to_a_device, os.mkfifo, Path.mkdir])
def test_links_and_special_files_are_not_followed(
    store: ImageStore, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    for path in (*files_of(store, "pieces"), *files_of(store, "images")):
        path.unlink()
        make(path)
    with pytest.raises(StoreFailedError):
        store.open("a")
    # The pieces alone, under a manifest that is whole.
    with ImageStore(tmp_path / "other") as other:
        commit(other, "a", REGIONS)
        link = store.directory / "images" / "a.json"
        link.rmdir() if link.is_dir() and not link.is_symlink() else link.unlink()
        link.write_bytes((other.directory / "images" / "a.json").read_bytes())
    with store.open("a") as image:
        assert len(list(image.verify())) == 3


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


@pytest.mark.root
@pytest.mark.skipif(not ROOT, reason="mounts a file system: only root may")
def test_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m,mode=700", "none", str(path)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        with ImageStore(path / "store") as store:
            commit(store, "a", {"r": some_bytes(1, 2 * PIECE_SIZE)})
            with store.begin("a") as draft, pytest.raises(StoreFullError, match="No space left on device"):
                put_region(draft, "r", some_bytes(2, 3 * PIECE_SIZE))
            assert content(store, "a") == {"r": some_bytes(1, 2 * PIECE_SIZE)}
            # Not a byte more: not even a draft can begin, and an image can be removed all the same.
            fill(path / "filler")
            with pytest.raises(StoreFullError), store.begin("b") as draft:
                put_region(draft, "r", some_bytes(3, 5000))
            assert content(store, "a") == {"r": some_bytes(1, 2 * PIECE_SIZE)}
            store.remove("a")
            assert store.collect().bytes >= 2 * PIECE_SIZE
            commit(store, "b", {"r": some_bytes(4, PIECE_SIZE)})
            assert content(store, "b") == {"r": some_bytes(4, PIECE_SIZE)}
    finally:
        subprocess.run(["umount", str(path)], check=True)


AS_ANOTHER = """
import os, sys, pathlib
from mpsguard.images.store.errors import ImageError
from mpsguard.images.store.store import ImageStore
from tests.unit.images.store.samples import content
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    with ImageStore(pathlib.Path(sys.argv[1])) as store:
        print(*(f"{name}={len(content(store, name)['weights'])}" for name in store.names()))
        for act in (lambda: store.begin("a"), lambda: store.remove("a"), store.collect):
            try:
                act()
            except ImageError as error:
                print(type(error).__name__)
except ImageError as error:
    print(error)
"""


def as_another(directory: Path) -> str:
    command = [sys.executable, "-c", AS_ANOTHER, str(directory)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.fixture
def shared() -> Iterator[ImageStore]:
    """A store below directories that all may pass."""
    with tempfile.TemporaryDirectory(prefix="images-") as directory:
        Path(directory).chmod(0o755)
        with ImageStore(Path(directory, "store")) as store:
            commit(store, "a", REGIONS)
            yield store


@pytest.mark.root
@pytest.mark.skipif(not ROOT, reason="takes another user's id: only root may")
def test_another_user(shared: ImageStore) -> None:
    before = sorted((path, path.lstat().st_mtime_ns) for path in shared.directory.rglob("*"))
    assert "Permission denied" in as_another(shared.directory)
    for path in (shared.directory, *shared.directory.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o444)
    said = as_another(shared.directory)
    assert said.split("\n") == [f"a={len(REGIONS['weights'])}", *["ForeignStoreError"] * 3, ""]
    assert sorted((path, path.lstat().st_mtime_ns) for path in shared.directory.rglob("*")) == before
    # And the other way round: root writes nothing into the store of a user, which could lead it elsewhere.
    for path in (shared.directory, *shared.directory.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    with ImageStore(shared.directory) as store:
        assert content(store, "a") == REGIONS
        for act in (lambda: store.begin("a"), lambda: store.remove("a"), store.collect):
            with pytest.raises(ForeignStoreError, match="another user"):
                act()
    empty = shared.directory.parent / "empty"
    empty.mkdir()
    os.chown(empty, NOBODY, NOBODY)
    with pytest.raises(ForeignStoreError, match="another user's directory"):
        ImageStore(empty)
    assert list(empty.iterdir()) == []


def test_a_lock_that_is_held_for_too_long_is_an_error(store: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_files.lock, "__defaults__", (0.05,))
    with (store.directory / "lock").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StoreBusyError, match="locked"):
            store.begin("a")
    assert content(store, "a") == REGIONS


def test_a_process_without_descriptors_takes_no_piece_for_damaged(store: ImageStore) -> None:
    with store.open("a") as image:
        (digest, size), *_ = image.manifest.pieces().items()
        with descriptors_left(0):
            with pytest.raises(StoreFailedError, match="open files"):
                image.read_into(digest, bytearray(size))
            with pytest.raises(StoreFailedError, match="open files"):
                list(image.verify())
        assert list(image.verify()) == []
