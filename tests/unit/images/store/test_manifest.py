"""A manifest is refused unless it is what was written and agrees with itself, whatever bytes come."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsguard.images.store import manifest as manifests
from mpsguard.images.store.errors import BadManifestError, DamagedError, ImageError
from mpsguard.images.store.manifest import Maker, Manifest, RegionImage, TensorImage
from mpsguard.images.store.pieces import PIECE_SIZE, digest_of

A, B = digest_of(b"a"), digest_of(b"b")
REGION = RegionImage("r", (PIECE_SIZE, 7), (A, B), va=1 << 45, metadata=b"\0\xff", sealed=(1,), gpu="GPU-1")
MANIFEST = Manifest.made_now(
    "llm",
    (REGION, RegionImage("s", (5,), (None,))),
    tensors=(TensorImage("t", "BF16", (3, 2), "r", 256),),
    generation=3,
    sequence=9,
    forward_state=b"\0state",
)


def file_of(body: bytes, version: int = 1, digest: str | None = None) -> bytes:
    first = {"format": version, "blake3": digest_of(body) if digest is None else digest}
    return msgspec.json.encode(first) + b"\n" + body


def changed(**fields: Any) -> bytes:
    return file_of(msgspec.json.encode(msgspec.to_builtins(MANIFEST) | fields))


def region(**fields: Any) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(REGION)
    return built | fields


def test_what_is_written_is_read() -> None:
    assert manifests.decode(manifests.encode(MANIFEST), "a") == MANIFEST
    assert MANIFEST.pieces() == {A: PIECE_SIZE, B: 7}
    assert MANIFEST.size == PIECE_SIZE + 12


def test_it_is_two_lines_of_json() -> None:
    first, second, rest = manifests.encode(MANIFEST).split(b"\n")
    assert msgspec.json.decode(first)["format"] == 1
    assert msgspec.json.decode(second)["session"] == "llm"
    assert rest == b""


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"later": 1}, "unknown field"),
        ({"session": "../x"}, "session"),
        ({"created": -1}, "created"),
        ({"created": 1e300}, "created"),
        ({"generation": -1}, "generation"),
        ({"regions": [region(), region()], "tensors": []}, "two regions"),
        ({"regions": [], "tensors": [msgspec.to_builtins(MANIFEST.tensors[0])]}, "does not lie"),
        ({"regions": [region(name="r q")]}, "name"),
        ({"regions": [region(pieces=[A])]}, "1 pieces"),
        ({"regions": [region(pieces=[A, B, None])]}, "3 pieces"),
        ({"regions": [region(pieces=[A, A])]}, "another size"),
        ({"regions": [region(pieces=[A, "0" * 63])]}, "pieces"),
        ({"regions": [region(pieces=[A, "../" + "0" * 61])]}, "pieces"),
        ({"regions": [region(pieces=[A, A.upper()])]}, "pieces"),
        ({"regions": [region(sizes=[PIECE_SIZE, 0])]}, "sizes"),
        ({"regions": [region(sizes=[], pieces=[], sealed=[])], "tensors": []}, "no chunk"),
        ({"regions": [region(sizes=[1 << 48, 1 << 48])]}, "is the most"),
        ({"regions": [region(sealed=[2])]}, "sealed"),
        ({"regions": [region(sealed=[1, 0])]}, "sealed"),
        ({"regions": [region(va=5)]}, "va"),
        ({"regions": [region(gpu="GPU 1\n")]}, "gpu"),
        ({"tensors": [{"name": "t", "dtype": "X", "shape": [], "region": "r", "offset": 0}]}, "known are"),
        ({"tensors": [{"name": "t", "dtype": "F32", "shape": [], "region": "q", "offset": 0}]}, "does not lie"),
        ({"tensors": [{"name": "t", "dtype": "F32", "shape": [1], "region": "s", "offset": 2}]}, "does not lie"),
        ({"tensors": [{"name": "t", "dtype": "F32", "shape": [1 << 56] * 64, "region": "s", "offset": 0}]}, "lie"),
        ({"tensors": [{"name": "t", "dtype": "F32", "shape": [0] * 65, "region": "s", "offset": 0}]}, "dimensions"),
        ({"tensors": [{"name": "t", "dtype": "F4", "shape": [3], "region": "s", "offset": 0}]}, "whole number"),
        ({"tensors": [{"name": "\x1b]0;t\a\n", "dtype": "X", "shape": [], "region": "r", "offset": 0}]}, "known are"),
        ({"\x1b[2J": 1}, "unknown field"),
        ({"maker": {"uid": 0, "program": "\x1b[2J", "host": "", "mpsguard": ""}}, "printable"),
    ],
)
def test_what_contradicts_itself_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(BadManifestError, match=says) as error:
        manifests.decode(changed(**fields), "a")
    assert str(error.value).startswith("image a: ")
    # It is shown on a terminal, and may be of another user's making.
    assert str(error.value).isprintable()


@pytest.mark.parametrize("field", ["session", "created", "maker"])
def test_what_is_not_complete_is_refused(field: str) -> None:
    built = msgspec.to_builtins(MANIFEST)
    del built[field]
    with pytest.raises(BadManifestError, match=field):
        manifests.decode(file_of(msgspec.json.encode(built)), "a")


def test_a_later_format_is_refused_by_its_number() -> None:
    for data in (file_of(b"{}", 2), b'{"format":3,"sha9":"x"}\n???'):
        with pytest.raises(BadManifestError, match=r"image a: format \d; this program reads format 1"):
            manifests.decode(data, "a")


def test_every_flipped_bit_is_found() -> None:
    data = manifests.encode(MANIFEST)
    for bit in range(len(data) * 8):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises((DamagedError, BadManifestError)):
            manifests.decode(bytes(broken), "a")


def test_every_cut_is_found() -> None:
    data = manifests.encode(MANIFEST)
    for length in range(len(data)):
        with pytest.raises(DamagedError):
            manifests.decode(data[:length], "a")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.sampled_from([A, B]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.sampled_from(["session", "created", "maker", "generation", "forward_state", "regions", "tensors"])
REGION_FIELDS = st.sampled_from(["name", "sizes", "pieces", "va", "metadata", "sealed", "gpu"])


@given(st.dictionaries(FIELDS, JSON, max_size=3), st.dictionaries(REGION_FIELDS, JSON, max_size=2))
@settings(max_examples=50)
def test_any_document_is_a_manifest_or_an_error(fields: dict[str, Any], of_region: dict[str, Any]) -> None:
    data = changed(**({"regions": [region(**of_region)], "tensors": []} | fields))
    try:
        manifest = manifests.decode(data, "a")
    except ImageError:
        return
    assert manifests.decode(manifests.encode(manifest), "a") == manifest
    assert all(size <= PIECE_SIZE for size in manifest.pieces().values())


@given(st.binary(max_size=300))
@settings(max_examples=100)
def test_any_bytes_are_an_error(data: bytes) -> None:
    for each in (data, file_of(data)):
        with pytest.raises(ImageError):
            manifests.decode(each, "a")


def test_a_manifest_that_is_too_large_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MOST_BYTES", 1000)
    with pytest.raises(BadManifestError, match="1000 is the most"):
        manifests.encode(Manifest("s", 0, Maker(0, "", "", ""), forward_state=bytes(1000)))
