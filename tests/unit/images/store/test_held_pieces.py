"""What a process goes on to rely on of the image that it has committed last."""

from pathlib import Path

import pytest

from mpsguard.images.store.errors import DamagedError
from mpsguard.images.store.image import HeldPieces
from mpsguard.images.store.manifest import Manifest
from mpsguard.images.store.pieces import PIECE_SIZE
from mpsguard.images.store.store import ImageStore
from tests.unit.images.store.samples import content, put_region, some_bytes

DATA = some_bytes("held", PIECE_SIZE)


def held_of(store: ImageStore, name: str) -> HeldPieces:
    with store.begin(name) as draft:
        return draft.commit_held(Manifest.made_now("session", (put_region(draft, "a", DATA),)))


def again(store: ImageStore, name: str, held: HeldPieces) -> bool:
    """Commit the same once more; return whether the store was not asked for it."""
    with store.begin(name, held=held) as draft:
        asked = not all(map(draft.holds, held.sizes))
        draft.commit(Manifest.made_now("session", (put_region(draft, "a", DATA),)))
    return not asked


def test_no_collector_takes_them_while_they_are_held(tmp_path: Path) -> None:
    with ImageStore(tmp_path / "store") as store:
        with held_of(store, "one") as held:
            store.remove("one")
            assert store.collect().pieces == 0
            assert again(store, "two", held)
        assert store.collect().pieces == 0
        assert content(store, "two") == {"a": DATA}
        store.remove("two")
        assert store.collect().pieces == 1


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_after_damage_the_store_is_asked_again(tmp_path: Path, damage: str) -> None:
    with ImageStore(tmp_path / "store") as store, held_of(store, "one") as held:
        (digest,) = held.sizes
        path = tmp_path / "store" / "pieces" / digest[:2] / digest
        path.unlink() if damage == "missing" else path.chmod(0o600)
        if damage == "flipped":
            path.write_bytes(bytes(PIECE_SIZE))
            path.chmod(0o400)
        with store.open("one") as image, pytest.raises(DamagedError):
            image.read_into(digest, bytearray(PIECE_SIZE))
        assert not again(store, "two", held)
        assert content(store, "two") == {"a": DATA}
