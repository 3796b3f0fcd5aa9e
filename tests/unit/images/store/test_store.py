"""A store of images: what is committed is read back, what is abandoned goes, equal pieces are stored once."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard.images.store.errors import (
    BadNameError,
    BadPieceError,
    ForeignStoreError,
    QuotaError,
    StoreFailedError,
    UnknownImageError,
    UnknownPieceError,
)
from mpsguard.images.store.manifest import Manifest, RegionImage
from mpsguard.images.store.pieces import PIECE_SIZE, digest_of
from mpsguard.images.store.store import ImageStore
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.unit.images.store.samples import commit, content, put_region, read_region, some_bytes

REGIONS = {
    "weights": some_bytes("weights", 2 * PIECE_SIZE + 1000),
    "empty": bytes(PIECE_SIZE + 5),
    "small": b"x",
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ImageStore]:
    with ImageStore(tmp_path / "store") as made:
        yield made


def files_of(store: ImageStore) -> list[str]:
    """What uses room: files of pieces, drafts and manifests."""
    kinds = ("pieces", "drafts", "images", "removed")
    return [str(path) for kind in kinds for path in (store.directory / kind).rglob("*") if path.is_file()]


def test_what_is_committed_is_read_back(store: ImageStore) -> None:
    manifest = commit(store, "llm/step:7.a", REGIONS, b"step 7")
    assert store.names() == ["llm/step:7.a"]
    assert content(store, "llm/step:7.a") == REGIONS
    with store.open("llm/step:7.a") as image:
        assert image.manifest == manifest
        assert image.manifest.maker.uid == os.geteuid()


def test_zeros_take_no_room(store: ImageStore) -> None:
    manifest = commit(store, "zeros", {"empty": bytes(8 * PIECE_SIZE + 1)})
    assert manifest.regions[0].pieces == (None,) * 9
    assert not [name for name in files_of(store) if "/pieces/" in name]


def test_the_store_and_its_files_are_for_its_user_alone(store: ImageStore) -> None:
    commit(store, "a", REGIONS)
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in [store.directory, *store.directory.rglob("*")]}
    assert [str(path) for path, mode in modes.items() if mode & 0o077] == []


def test_equal_pieces_are_stored_once(store: ImageStore) -> None:
    commit(store, "a", {"one": REGIONS["weights"], "two": REGIONS["weights"]})
    before = files_of(store)
    commit(store, "b", {"other": REGIONS["weights"]})
    assert len(files_of(store)) == len(before) + 1
    assert len([name for name in before if "/pieces/" in name]) == 3


def test_an_abandoned_draft_leaves_the_image_as_it_was(store: ImageStore) -> None:
    commit(store, "a", REGIONS)
    before = files_of(store)
    with store.begin("a") as draft:
        put_region(draft, "weights", some_bytes("other", 3 * PIECE_SIZE))
    assert content(store, "a") == REGIONS
    assert store.collect().pieces == 3
    assert files_of(store) == before


def test_two_drafts_of_one_name(store: ImageStore) -> None:
    with store.begin("a") as first, store.begin("a") as second:
        images = [(put_region(draft, "r", some_bytes(key, 100)),) for key, draft in ((1, first), (2, second))]
        second.commit(Manifest.made_now("s", images[1]))
        assert content(store, "a") == {"r": some_bytes(2, 100)}
        first.commit(Manifest.made_now("s", images[0]))
    assert content(store, "a") == {"r": some_bytes(1, 100)}
    assert store.collect().images == 1
    assert len(files_of(store)) == 2


def test_an_image_can_be_read_after_its_removal_until_it_is_closed(store: ImageStore) -> None:
    commit(store, "a", REGIONS)
    with store.open("a") as image:
        store.remove("a")
        assert store.names() == []
        assert store.collect().pieces == 0
        assert read_region(image, image.manifest.regions[0]) == REGIONS["weights"]
    collected = store.collect()
    assert (collected.pieces, collected.images) == (4, 1)
    assert files_of(store) == []


def test_a_replaced_image_can_be_read_until_it_is_closed(store: ImageStore) -> None:
    commit(store, "a", REGIONS)
    with store.open("a") as image:
        commit(store, "a", {"weights": b"new"})
        store.collect()
        assert read_region(image, image.manifest.regions[0]) == REGIONS["weights"]
    assert content(store, "a") == {"weights": b"new"}


def test_a_draft_keeps_what_it_put_and_what_it_found(store: ImageStore) -> None:
    commit(store, "a", REGIONS)
    with store.begin("b") as draft:
        found = digest_of(REGIONS["small"])
        assert draft.has(found)
        assert not draft.has("0" * 64)
        region = put_region(draft, "new", some_bytes("new", 300))
        store.remove("a")
        store.collect()
        draft.commit(Manifest.made_now("s", (region, RegionImage("small", (1,), (found,)))))
    assert content(store, "b") == {"new": some_bytes("new", 300), "small": b"x"}


def test_what_an_abandoned_draft_left_is_found_by_the_next(store: ImageStore) -> None:
    data = some_bytes("again", PIECE_SIZE)
    with store.begin("a") as draft:
        draft.put(data)
    with store.begin("a") as draft:
        assert draft.has(digest_of(data))
        draft.commit(Manifest.made_now("s", (RegionImage("r", (len(data),), (digest_of(data),)),)))
        assert draft.written == 0
    assert content(store, "a") == {"r": data}


def test_a_manifest_with_a_piece_that_was_not_put_is_refused(store: ImageStore) -> None:
    commit(store, "a", REGIONS)
    with store.begin("a") as draft, pytest.raises(UnknownPieceError, match="region r"):
        draft.commit(Manifest.made_now("s", (RegionImage("r", (5,), (digest_of(b"12345"),)),)))
    assert content(store, "a") == REGIONS


def test_a_draft_ends_with_its_commit(store: ImageStore) -> None:
    with store.begin("a") as draft:
        draft.commit(Manifest.made_now("s", ()))
        with pytest.raises(StoreFailedError, match="ended"):
            draft.put(b"x")


@pytest.mark.parametrize("size", [0, PIECE_SIZE + 1])
def test_pieces_have_a_size(store: ImageStore, size: int) -> None:
    with store.begin("a") as draft, pytest.raises(BadPieceError):
        draft.put(bytes(size))


@pytest.mark.parametrize("name", ["", "../a", "/a", "a b", "a+b", ".a", "a\n", "x" * 129])
def test_bad_names(store: ImageStore, name: str) -> None:
    for refused in (store.begin, store.open, store.remove):
        with pytest.raises(BadNameError):
            refused(name)


def test_names_that_look_like_paths_stay_inside(store: ImageStore) -> None:
    names = ["a/../../b", "a/b", "x" * 128, "/".join("a" * 64)]
    for name in names:
        commit(store, name, {"r": name.encode()})
    assert store.names() == sorted(names)
    assert {name: content(store, name)["r"].decode() for name in names} == {name: name for name in names}
    assert [path.name for path in store.directory.parent.iterdir()] == ["store"]


def test_unknown_images(store: ImageStore) -> None:
    for refused in (store.open, store.remove):
        with pytest.raises(UnknownImageError, match="no image b in"):
            refused("b")


def test_a_quota_holds_for_all_drafts_together(tmp_path: Path) -> None:
    with ImageStore(tmp_path / "store", quota=3000) as store, ImageStore(tmp_path / "store", quota=3000) as other:
        with store.begin("a") as first, other.begin("b") as second:
            first.put(some_bytes(1, 1500))
            second.put(some_bytes(2, 1000))
            with pytest.raises(QuotaError, match="3000 bytes, of which 2500"):
                second.put(some_bytes(3, 501))
            first.put(some_bytes(2, 1000))
            second.put(some_bytes(4, 500))
        assert store.collect().bytes == 3000
        with store.begin("a") as first:
            first.put(some_bytes(3, 3000))


def test_a_lost_or_damaged_number_of_the_bytes_is_counted_anew(tmp_path: Path) -> None:
    with ImageStore(tmp_path / "store", quota=3000) as store:
        commit(store, "a", {"r": some_bytes(1, 2000)})
        for text in (None, b"", b"nonsense", b"-" * 20):
            stored = store.directory / "stored"
            stored.unlink()
            if text is not None:
                stored.write_bytes(text)
            with store.begin("b") as draft, pytest.raises(QuotaError, match="of which 2000"):
                draft.put(some_bytes(2, 1001))


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ForeignStoreError, match="not empty"):
        ImageStore(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(StoreFailedError, match="Not a directory"):
        ImageStore(tmp_path / "file")


def test_a_store_of_a_later_version_is_refused(store: ImageStore) -> None:
    (store.directory / "version").write_text("mpsguard images 2\n")
    with pytest.raises(ForeignStoreError, match="another version"):
        ImageStore(store.directory)


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "store"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(ForeignStoreError, match="others may write"):
        ImageStore(path)


def test_a_store_that_was_cut_off_while_it_was_made_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.mkdir(mode=0o700)
    (path / "version").write_text("mpsgu")
    with ImageStore(path) as store:
        commit(store, "a", REGIONS)
        assert content(store, "a") == REGIONS


def test_a_store_opened_in_vain_leaves_no_descriptor(store: ImageStore) -> None:
    before = open_descriptors()
    commit(store, "a", REGIONS)
    for name in ("b", "a"):
        with pytest.raises(UnknownImageError) if name == "b" else store.open(name):
            store.open(name).close()
    store.remove("a")
    store.collect()
    assert opened_since(before) == []
