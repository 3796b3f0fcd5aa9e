"""Memory that is filled from an image: runs of pieces, what breaks them, and pieces that are not what was stored."""

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from blake3 import blake3

from mpsguard.images.checkpoints import restore
from mpsguard.images.checkpoints.pieces import PIECE
from mpsguard.images.checkpoints.restore import fill
from mpsguard.images.checkpoints.targets import HostTarget
from mpsguard.images.store.errors import DamagedError
from mpsguard.images.store.manifest import Manifest, RegionImage
from mpsguard.images.store.store import ImageStore
from tests.unit.images.store.samples import some_bytes

LAST = 5 * 4096
SIZES = (PIECE + 4096, 2 * PIECE - 8192, 4 * PIECE + 4096 + LAST)
"""Of chunks, within which pieces and runs begin and end; 7 pieces and the last one in all."""


class BatchTarget(HostTarget):
    """Host memory that takes several pieces at once, as a GPU's does."""

    batch = 3

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__(sizes)
        self.written: list[tuple[int, int]] = []
        self.cleared: list[tuple[int, int]] = []
        self._lock = threading.Lock()

    def write(self, index: int, content: memoryview) -> None:
        """See `Target.write`."""
        with self._lock:
            self.written.append((index, len(content)))
        super().write(index, content)

    def clear(self, index: int, size: int) -> None:
        """See `Target.clear`."""
        self.cleared.append((index, size))
        super().clear(index, size)

    def content(self) -> bytes:
        """What the memory has."""
        return b"".join(os.pread(fd, os.fstat(fd).st_size, 0) for fd in self._fds)


class DigestingTarget(BatchTarget):
    """As a GPU's memory: digested after it was filled."""

    digests_itself = True

    def digests(self, indices: Sequence[int]) -> bytes:
        """See `Target.digests`."""
        content = self.content()
        return b"".join(blake3(content[index * PIECE : (index + 1) * PIECE]).digest() for index in indices)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ImageStore]:
    with ImageStore(tmp_path / "store") as store:
        yield store


@pytest.fixture(autouse=True)
def _one_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that all pieces of a region are one part, whatever processors there are."""
    monkeypatch.setattr(restore, "_READERS", 1)


def commit(store: ImageStore, name: str, pieces: str) -> tuple[RegionImage, bytes]:
    """Store a region with a letter for each piece, "0" for zeros; the last one is short. Return its bytes, too."""
    ends = [PIECE] * (len(pieces) - 1) + [LAST]
    parts = [bytes(size) if kind == "0" else some_bytes(kind, size) for kind, size in zip(pieces, ends, strict=True)]
    with store.begin(name) as draft:
        region = RegionImage("r", SIZES, tuple(draft.put(part) for part in parts))
        draft.commit(Manifest.made_now("s", (region,)))
    return region, b"".join(parts)


@pytest.mark.parametrize("kind", [BatchTarget, DigestingTarget])
@pytest.mark.parametrize(
    ("pieces", "runs"),
    [
        ("abcdefgh", [(0, 3), (3, 3), (6, 2)]),
        ("ab0cdefg", [(0, 2), (3, 3), (6, 2)]),
        ("0a0bcde0", [(1, 1), (3, 3), (6, 1)]),
        ("00000000", []),
        ("aaaa0bb0", [(0, 3), (3, 1), (5, 2)]),
    ],
)
def test_runs_are_written_at_once(
    store: ImageStore, kind: type[BatchTarget], pieces: str, runs: list[tuple[int, int]]
) -> None:
    region, expected = commit(store, "one", pieces)
    target = kind(SIZES)
    try:
        with store.open("one") as image:
            assert fill(image, [(region, target)]) == len(expected)
        assert target.content() == expected
        assert target.written == [(first, min(count * PIECE, len(expected) - first * PIECE)) for first, count in runs]
        assert [index for index, _ in target.cleared] == [at for at, letter in enumerate(pieces) if letter == "0"]
    finally:
        target.close()


def test_of_a_later_image_the_difference_alone_is_written_and_what_was_written_is_cleared(store: ImageStore) -> None:
    first, _ = commit(store, "first", "abcdefgh")
    later, expected = commit(store, "later", "aX0Y0Z00")
    target = BatchTarget(SIZES)
    try:
        with store.open("first") as image:
            fill(image, [(first, target)])
        target.written.clear()
        with store.open("later") as image:
            assert fill(image, [(later, target)], {"r": first}) == len(expected) - PIECE
        assert target.content() == expected
        assert sorted(piece for piece in target.written if piece[0] in (1, 3, 5)) == [
            (1, PIECE),
            (3, PIECE),
            (5, PIECE),
        ]
    finally:
        target.close()


def test_new_memory_is_not_written_to_be_zero(store: ImageStore) -> None:
    """It takes up no room until it is."""
    region, _ = commit(store, "one", "ab000c00")
    target = BatchTarget(SIZES)
    try:
        with store.open("one") as image:
            fill(image, [(region, target)])
        assert target.written == [(0, 2 * PIECE), (5, PIECE)]
    finally:
        target.close()


@pytest.mark.parametrize("kind", [BatchTarget, DigestingTarget])
@pytest.mark.parametrize("damage", ["shorter", "longer", "flipped", "missing"])
@pytest.mark.parametrize("victim", range(8))
def test_a_damaged_piece_of_a_run_is_named(
    store: ImageStore, kind: type[BatchTarget], damage: str, victim: int
) -> None:
    region, _ = commit(store, "one", "abcdefgh")
    digest = region.pieces[victim]
    assert digest is not None
    path = store.directory / "pieces" / digest[:2] / digest
    whole = path.read_bytes()
    path.chmod(0o600)
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {"shorter": whole[:-1], "longer": whole + b"x", "flipped": whole[:99] + b"flip" + whole[103:]}[damage]
        )
    target = kind(SIZES)
    try:
        with store.open("one") as image, pytest.raises(DamagedError) as damaged:
            fill(image, [(region, target)])
        assert (damaged.value.digest, damaged.value.region) == (digest, "r")
    finally:
        target.close()


def test_a_buffer_that_another_kind_has_left_to_a_thread_is_large_enough() -> None:
    for kind in (HostTarget, BatchTarget, HostTarget):
        target = kind(SIZES)
        with target.filling() as buffer:
            assert len(buffer) >= kind.batch * PIECE
        target.close()
