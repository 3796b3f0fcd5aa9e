"""Which tensors lie where: nothing of a manifest leads outside its region."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.vault.client import tensor_manifest as manifest
from mpsguard.vault.client.tensor_manifest import ALIGNMENT, SIZES, Placed, Spec, TensorManifest, TensorManifestError

SHAPES = st.lists(st.integers(0, 50), max_size=4).map(tuple)
SPECS = st.dictionaries(st.text(max_size=10), st.builds(Spec, st.sampled_from(sorted(SIZES)), SHAPES), max_size=12)


@given(SPECS)
def test_planned_tensors_lie_apart_aligned_and_inside(specs: dict[str, Spec]) -> None:
    plan = manifest.plan(specs)
    assert list(plan.tensors) == list(specs)
    behind = 0
    for name, placed in plan.tensors.items():
        assert (placed.dtype, placed.shape) == (specs[name].dtype, specs[name].shape)
        assert placed.offset % ALIGNMENT == 0
        assert placed.offset >= behind
        elements = 1
        for length in placed.shape:
            elements *= length
        behind = placed.end
        assert placed.end - placed.offset == elements * SIZES[placed.dtype]
    assert behind <= plan.size
    assert manifest.decode(manifest.encode(plan) + b"\0" * 100, plan.size) == plan


def test_the_extent_of_a_view_counts_its_gaps() -> None:
    assert manifest.extent((3, 4), (10, 2)) == 1 + 20 + 6
    assert manifest.extent((3, 0), (10, 2)) == 0
    assert manifest.extent((), ()) == 1
    assert manifest.contiguous((2, 3, 4)) == (12, 4, 1)


def placed(**changes: object) -> Placed:
    return msgspec.structs.replace(Placed("float32", (4,), (1,), 16), **changes)


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (placed(offset=20), "bytes 20 to 36"),
        (placed(offset=18), "bytes 18"),
        (placed(shape=(5,)), "to 36"),
        (placed(strides=(2,)), "to 44"),
        (placed(shape=(1 << 40,), strides=(1 << 40,)), "of a region of 32"),
        (placed(strides=(1, 1)), "1 lengths and 2 strides"),
        (placed(dtype="float128"), "float128"),
    ],
)
def test_a_tensor_that_leads_outside_is_refused(tensor: Placed, said: str) -> None:
    data = manifest.encode(TensorManifest(manifest.VERSION, 32, {"t": tensor}))
    with pytest.raises(TensorManifestError, match=said):
        manifest.decode(data, 32)


def test_one_that_fits_is_taken() -> None:
    whole = TensorManifest(manifest.VERSION, 32, {"t": placed()})
    assert manifest.decode(manifest.encode(whole), 32) == whole


@given(st.binary(max_size=200))
def test_anything_else_is_no_manifest(data: bytes) -> None:
    with pytest.raises(TensorManifestError):
        manifest.decode(data, 1 << 40)


def test_another_version_is_refused() -> None:
    with pytest.raises(TensorManifestError, match="version 2"):
        manifest.decode(manifest.encode(TensorManifest(2, 1, {})), 1)


def test_half_of_one_is_refused() -> None:
    with pytest.raises(TensorManifestError, match="not all"):
        manifest.decode(manifest.encode(TensorManifest(manifest.VERSION, 32, {"t": placed()}))[:-1], 32)


def test_an_unknown_type_is_refused_when_it_is_planned() -> None:
    with pytest.raises(TensorManifestError, match="quint8"):
        manifest.plan({"t": Spec("quint8", (1,))})


def test_a_name_that_is_no_text_is_refused() -> None:
    data = manifest.encode(TensorManifest(manifest.VERSION, 32, {"QQ": placed()})).replace(b"QQ", b"\xff\xfe")
    with pytest.raises(TensorManifestError, match="not a manifest"):
        manifest.decode(data, 32)
