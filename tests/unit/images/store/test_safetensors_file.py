"""Files of safetensors come and go bit by bit, of all types; what is none is refused in one line."""

from __future__ import annotations

import errno
import json
import os
import random
import struct
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

import numpy
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsguard.images.store import safetensors_file
from mpsguard.images.store.errors import DamagedError, StoreFullError, TensorFileError
from mpsguard.images.store.manifest import DTYPE_BITS, Manifest, TensorImage
from mpsguard.images.store.pieces import PIECE_SIZE, piece_digest
from mpsguard.images.store.safetensors_file import ALIGNMENT
from mpsguard.images.store.store import ImageStore
from tests.unit.images.store.fs_faults import Faults
from tests.unit.images.store.samples import commit, content, some_bytes

Tensors = Mapping[str, tuple[str, list[int], bytes]]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ImageStore]:
    with ImageStore(tmp_path / "store") as made:
        yield made


def file_of(tensors: Tensors, metadata: Mapping[str, str] | None = None) -> bytes:
    """A file as the library writes it, for tensors in the order in which it sorts them."""
    head: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    header = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + b"".join(data for _, _, data in tensors.values())


def tensor(dtype: str, shape: list[int]) -> tuple[str, list[int], bytes]:
    return dtype, shape, some_bytes((dtype, shape), prod(shape) * DTYPE_BITS[dtype] // 8)


def imported(store: ImageStore, name: str, path: Path) -> Manifest:
    with safetensors_file.opened(path, "weights") as file, store.begin(name) as draft:
        region = safetensors_file.read_into(draft, file, path, "weights")
        manifest = Manifest.made_now("session", (region,), tensors=file.tensors)
        draft.commit(manifest)
    return manifest


def exported(store: ImageStore, name: str, path: Path) -> bytes:
    with store.open(name) as image:
        safetensors_file.write(image, path, replace=False)
    return path.read_bytes()


def test_every_type_survives(store: ImageStore, tmp_path: Path) -> None:
    tensors = {f"t.{dtype}": tensor(dtype, [3, 8]) for dtype in reversed(DTYPE_BITS)}
    data = file_of(tensors, {"format": "pt", "ä": "ö\n"})
    (tmp_path / "in").write_bytes(data)
    manifest = imported(store, "a", tmp_path / "in")
    assert exported(store, "a", tmp_path / "out") == data
    region = content(store, "a")["weights"]
    assert {each.name: region[each.offset : each.offset + each.size] for each in manifest.tensors} == {
        name: data for name, (_, _, data) in tensors.items()
    }
    assert [each.name for each in manifest.tensors if each.offset % ALIGNMENT] == []


def test_tensors_across_pieces_and_of_no_size(store: ImageStore, tmp_path: Path) -> None:
    tensors = {
        "z": tensor("I64", []),
        "large": tensor("BF16", [5, PIECE_SIZE // 4 + 3]),
        "none": tensor("BF16", [0, 7]),
        "zeros": ("BF16", [2 * PIECE_SIZE], bytes(4 * PIECE_SIZE)),
        "b": tensor("F8_E4M3", [PIECE_SIZE - 1]),
        "last": tensor("U8", [1]),
    }
    data = file_of(tensors)
    (tmp_path / "in").write_bytes(data)
    moved: list[int] = []
    manifest = imported(store, "a", tmp_path / "in")
    assert manifest.size % PIECE_SIZE == 0
    assert manifest.regions[0].pieces.count(None) == 3  # all but the ends of `zeros`
    with store.open("a") as image:
        safetensors_file.write(image, tmp_path / "out", replace=False, moved=moved.append)
    assert (tmp_path / "out").read_bytes() == data
    assert sum(moved) == manifest.size


def test_pieces_that_are_stored_at_the_same_time_keep_their_order(store: ImageStore, tmp_path: Path) -> None:
    pieces = 3 * safetensors_file.AHEAD
    data = random.Random(1).randbytes(pieces * PIECE_SIZE)
    (tmp_path / "in").write_bytes(file_of({"t": ("U8", [len(data)], data)}))
    moved: list[int] = []
    with safetensors_file.opened(tmp_path / "in", "weights") as file, store.begin("a") as draft:
        region = safetensors_file.read_into(draft, file, tmp_path / "in", "weights", moved.append)
    assert list(region.pieces) == [piece_digest(data[at : at + PIECE_SIZE]) for at in range(0, len(data), PIECE_SIZE)]
    assert moved == [PIECE_SIZE] * pieces


def test_a_file_that_becomes_shorter_meanwhile_is_refused(store: ImageStore, tmp_path: Path) -> None:
    data = bytes(3 * safetensors_file.AHEAD * PIECE_SIZE)
    path = tmp_path / "in"
    path.write_bytes(file_of({"t": ("U8", [len(data)], data)}))
    with safetensors_file.opened(path, "weights") as file, store.begin("a") as draft:
        os.truncate(path, len(data) // 2)
        with pytest.raises(TensorFileError, match="became shorter"):
            safetensors_file.read_into(draft, file, path, "weights")


def test_the_same_as_the_library_writes(store: ImageStore, tmp_path: Path) -> None:
    """Among them types that NumPy does not have."""
    kept, specs = [], {}
    for name, (dtype, shape) in {
        "a.weight": ("bfloat16", [300, 70]),
        "a.scale": ("float8_e4m3fn", [9]),
        "b.weight": ("float32", [1000, 700]),
        "b.packed": ("float4_e2m1fn_x2", [5, 8]),
        "c": ("complex64", [5]),
        "step": ("int64", []),
    }.items():
        data = numpy.frombuffer(some_bytes(name, 4 * prod(shape) + 8), numpy.uint8)
        size = {"bfloat16": 2, "float32": 4, "complex64": 8, "int64": 8}.get(dtype, 1) * prod(shape)
        kept.append(data)
        specs[name] = safetensors.TensorSpec(dtype=dtype, shape=shape, data_ptr=data.ctypes.data, data_len=size)
    data = safetensors.serialize(specs, metadata={"format": "pt"})
    (tmp_path / "in").write_bytes(data)
    imported(store, "a", tmp_path / "in")
    assert exported(store, "a", tmp_path / "out") == data


def test_a_fine_tune_takes_the_room_of_what_it_changed(store: ImageStore, tmp_path: Path) -> None:
    """A base and five fine-tunes, each of which changes 5 % of the bytes, in whole tensors as fine-tuning does."""
    layers = 20
    base = {f"layer.{number:02}": tensor("BF16", [PIECE_SIZE // 2]) for number in range(layers)}
    models = [base]
    for tune in range(5):
        changed = random.Random(tune).sample(sorted(base), layers * 5 // 100)
        models.append(
            base | {name: ("BF16", [PIECE_SIZE // 2], some_bytes((tune, name), PIECE_SIZE)) for name in changed}
        )
    apart = 0
    for number, model in enumerate(models):
        (tmp_path / "in").write_bytes(file_of(model))
        apart += (tmp_path / "in").stat().st_size
        imported(store, f"model/{number}", tmp_path / "in")
    together = sum(path.stat().st_blocks * 512 for path in store.directory.rglob("*") if path.is_file())
    # Five of six copies go but for 5 % each: 79.2 % of everything, and 95 % of what the fine-tunes would add.
    added = apart / len(models)
    assert 1 - together / apart > 0.785
    assert 1 - (together - added) / (apart - added) > 0.94
    assert exported(store, "model/5", tmp_path / "out") == file_of(models[5])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no file of safetensors"),
        (b"{}", "no file of safetensors"),
        (struct.pack("<Q", 2) + b"{}", "no tensor"),
        (struct.pack("<Q", 1 << 62) + b"{}", "no file of safetensors"),
        (file_of({"a": ("U8", [4], b"1234")})[:-1], "no file of safetensors"),
        (file_of({"a": ("U8", [4], b"1234")}) + b"5", "no file of safetensors"),
        (file_of({"a": ("X9", [4], b"1234")}), "no file of safetensors"),
        (file_of({"a": ("U8", [1 << 62, 1 << 62], b"1234")}), "no file of safetensors"),
        (file_of({"a": ("U8", [4], b"1234")}, {"k": "v" * (65 << 10)}), "metadata"),
    ],
    ids=["empty", "short", "no tensors", "huge header", "cut off", "longer", "type", "overflow", "metadata"],
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "in").write_bytes(data)
    with pytest.raises(TensorFileError, match=says) as error, safetensors_file.opened(tmp_path / "in", "r"):
        pass
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"n" * 4097: ("U8", [1], b"x")}, "name"),
        ({"a": ("U8", [1], b"x"), "b": ("U8", [0, 1 << 57], b"")}, "dimension"),
        ({"\x1b[2J": ("U8", [0, 1 << 57], b"")}, "dimension"),
    ],
)
def test_what_no_manifest_can_have_is_refused(store: ImageStore, tmp_path: Path, tensors: Tensors, says: str) -> None:
    """An image that is committed can be opened: one that could not would also keep the collector from its work."""
    path = tmp_path / "file"
    path.write_bytes(file_of(tensors))
    with pytest.raises(TensorFileError, match=says) as error:
        imported(store, "image", path)
    assert str(error.value).isprintable()
    assert store.names() == []


@given(st.binary(max_size=200))
@settings(max_examples=150)
def test_any_bytes_are_a_file_or_an_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(struct.pack("<Q", max(0, len(data) - 8)) + data)
    try:
        with safetensors_file.opened(path, "r") as file:
            assert file.size >= sum(each.size for each in file.tensors)
    except TensorFileError:
        pass


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", Path("/dev/null")):
        with pytest.raises(TensorFileError), safetensors_file.opened(path, "r"):
            pass


def test_an_existing_file_is_not_replaced_unasked(store: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(file_of({"a": ("U8", [4], b"1234")}))
    imported(store, "a", tmp_path / "in")
    (tmp_path / "out").write_text("mine")
    with store.open("a") as image:
        with pytest.raises(TensorFileError, match="already"):
            safetensors_file.write(image, tmp_path / "out", replace=False)
        assert (tmp_path / "out").read_text() == "mine"
        safetensors_file.write(image, tmp_path / "out", replace=True)
    assert (tmp_path / "out").read_bytes() == (tmp_path / "in").read_bytes()


def test_without_room_there_is_no_file(store: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(file_of({"a": ("U8", [4], b"1234")}))
    imported(store, "a", tmp_path / "in")

    def full(_name: str, _arguments: tuple[object, ...]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with store.open("a") as image:
        calls = Faults()
        with calls.armed():
            safetensors_file.write(image, tmp_path / "out", replace=False)
        (tmp_path / "out").unlink()
        with Faults(calls.seen.index("pwrite"), full).armed(), pytest.raises(StoreFullError):
            safetensors_file.write(image, tmp_path / "out", replace=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "store"]


def test_a_damaged_image_leaves_no_file(store: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(file_of({"a": ("U8", [4], b"1234")}))
    imported(store, "a", tmp_path / "in")
    (piece,) = (path for path in (store.directory / "pieces").rglob("*") if path.is_file())
    piece.unlink()
    with store.open("a") as image, pytest.raises(DamagedError, match="region weights is missing"):
        safetensors_file.write(image, tmp_path / "out", replace=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "store"]


def test_an_image_without_tensors_has_no_such_file(store: ImageStore, tmp_path: Path) -> None:
    commit(store, "a", {"r": b"bytes"})
    with store.open("a") as image, pytest.raises(TensorFileError, match="no tensor"):
        safetensors_file.write(image, tmp_path / "out", replace=False)


def test_tensors_that_share_their_bytes_are_written_twice(store: ImageStore, tmp_path: Path) -> None:
    with store.begin("a") as draft:
        manifest = commit(store, "base", {"r": b"12345678"})
        for digest in manifest.pieces():
            assert draft.has(digest)
        tensors = (TensorImage("one", "U8", (8,), "r", 0), TensorImage("two", "I32", (1,), "r", 4))
        draft.commit(Manifest.made_now("s", manifest.regions, tensors=tensors))
    assert exported(store, "a", tmp_path / "out") == file_of(
        {"two": ("I32", [1], b"5678"), "one": ("U8", [8], b"12345678")}
    )
