"""Profiles beside images: of other users, of several processes at once, and files that are none."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from mpsguard.images.on_demand import Profile, load_profile, save_profile
from mpsguard.images.on_demand.profile import profile_of
from mpsguard.images.store.errors import ForeignStoreError
from mpsguard.images.store.pieces import PIECE_SIZE
from mpsguard.images.store.store import ImageStore
from tests.unit.images.store.samples import commit, some_bytes

STRANGER = 65534


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ImageStore]:
    with ImageStore(tmp_path / "store") as store:
        commit(store, "i", {"a": some_bytes("a", 3 * PIECE_SIZE)})
        yield store


def whole(store: ImageStore) -> Profile:
    with store.open("i") as image:
        return profile_of(image.manifest, tuple(("a", index) for index in reversed(range(3))))


def order_file(store: ImageStore) -> Path:
    return store.directory / "images" / "i.json.order"


@pytest.mark.root
def test_a_profile_is_not_written_into_the_store_of_another_user(tmp_path: Path, store: ImageStore) -> None:
    mine = tmp_path / "mine"
    mine.write_text("kept")
    for ending in (".new", ".order", ".order.new"):
        (store.directory / "images" / f"i.json{ending}").symlink_to(mine)
    for path in (store.directory, *store.directory.rglob("*")):
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    with ImageStore(store.directory) as foreign, pytest.raises(ForeignStoreError):
        save_profile(foreign, "i", whole(foreign))
    assert mine.read_text() == "kept"


def test_several_programs_save_a_profile_at_once(store: ImageStore) -> None:
    profile = whole(store)

    def save(_: int) -> None:
        with ImageStore(store.directory) as own:
            save_profile(own, "i", profile)

    with ThreadPoolExecutor(8) as threads:
        for each in threads.map(save, range(200)):
            assert each is None
    with store.open("i") as image:
        assert load_profile(store, image) == profile
    assert sorted(path.name for path in order_file(store).parent.iterdir()) == ["i.json", "i.json.order"]
    assert list((store.directory / "drafts").iterdir()) == []


@pytest.mark.timeout(20)
def test_what_is_no_file_of_the_store_is_no_profile(tmp_path: Path, store: ImageStore) -> None:
    path = order_file(store)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(msgspec.json.encode(whole(store)))
    with store.open("i") as image:
        path.symlink_to(elsewhere)
        assert load_profile(store, image) is None
        path.unlink()
        # It is not waited for, as the open(2) of a named pipe is.
        os.mkfifo(path)
        assert load_profile(store, image) is None


def test_a_profile_names_no_more_pieces_than_its_image_has(store: ImageStore) -> None:
    profile = whole(store)
    many = Profile(profile.image, tuple(("a", index) for index in range(100_000)))
    with store.open("i") as image:
        order_file(store).write_bytes(msgspec.json.encode(profile))
        assert load_profile(store, image) == profile
        order_file(store).write_bytes(msgspec.json.encode(many))
        assert load_profile(store, image) is None
