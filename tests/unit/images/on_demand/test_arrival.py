"""Images that arrive while they are used: order, waiting, errors, profiles."""

import threading
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mpsguard.images.on_demand import (
    ArrivalError,
    ArrivingImage,
    Profile,
    load_profile,
    open_on_demand,
    save_profile,
)
from mpsguard.images.on_demand.destination import HostDestination
from mpsguard.images.on_demand.profile import reading_order
from mpsguard.images.store.image import Image
from mpsguard.images.store.manifest import Manifest
from mpsguard.images.store.pieces import PIECE_SIZE
from mpsguard.images.store.store import ImageStore
from tests.unit.images.store.samples import commit, some_bytes

CONTENT = {"a": some_bytes("a", 5 * PIECE_SIZE + 7), "b": bytes(PIECE_SIZE) + b"b"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ImageStore]:
    with ImageStore(tmp_path / "store") as store:
        commit(store, "i", CONTENT)
        yield store


class SlowImage(Image):
    """An image with pieces that come when they may."""

    def hold_back(self) -> None:
        """Let only the readers' first pieces begin, and note which."""
        self.gate, self.begun = threading.Semaphore(0), list[object]()

    def read_into(self, digest: str | None, buffer: object, *, checked: bool = True) -> None:
        """See `Image.read_into`."""
        self.begun.append(digest)
        assert self.gate.acquire(timeout=30)
        super().read_into(digest, buffer, checked=checked)  # type: ignore[arg-type]


def slow(store: ImageStore) -> SlowImage:
    image = store.open("i")
    image.__class__ = SlowImage
    assert isinstance(image, SlowImage)
    image.hold_back()
    return image


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 6)),
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 8)), max_size=20),
)
def test_each_piece_comes_once_and_those_of_the_profile_first(
    counts: dict[str, int], pieces: list[tuple[str, int]]
) -> None:
    order = list(reading_order(counts, Profile("", tuple(pieces))))
    assert sorted(order) == sorted((region, index) for region, count in counts.items() for index in range(count))
    first = list(dict.fromkeys(piece for piece in pieces if piece in set(order)))
    assert order[: len(first)] == first


def test_all_content_arrives(store: ImageStore) -> None:
    with store.open("i") as image, open_on_demand(image) as arriving:
        arriving.ready()
        assert {name: region.memory[:] for name, region in arriving.regions.items()} == CONTENT
        assert arriving.profile().pieces == ()
        with pytest.raises(ValueError, match="not 2 from"):
            arriving.regions["b"].ready(PIECE_SIZE, 2)


def test_what_is_waited_for_comes_before_the_rest(store: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostDestination, "readers", 1)
    with slow(store) as image:
        digests = {index: digest for index, digest, _ in image.manifest.regions[0].stored()}
        arriving = ArrivingImage(image, Profile("", (("a", 2),)), HostDestination(image))
        try:
            waiter = threading.Thread(target=arriving.regions["a"].ready, args=(5 * PIECE_SIZE, 7))
            waiter.start()
            with pytest.raises(ArrivalError, match="not there within"):
                arriving.regions["a"].ready(4 * PIECE_SIZE, 1, within=0.05)
            while len(arriving.profile().pieces) < 2:
                threading.Event().wait(0.001)
            image.gate.release(2)
            arriving_first = [digests[2], digests[arriving.profile().pieces[0][1]]]
            image.gate.release(100)
            waiter.join(30)
            arriving.ready()
            assert image.begun[:2] == arriving_first
            assert set(arriving.profile().pieces) == {("a", 5), ("a", 4)}
        finally:
            image.gate.release(100)
            arriving.close()


def test_damage_reaches_all_that_wait_and_no_wrong_byte_is_ready(store: ImageStore) -> None:
    with store.open("i") as image:
        digest = image.manifest.regions[0].pieces[5]
        assert digest is not None
        path = next(path for path in (store.directory / "pieces").rglob("*") if path.is_file() and digest in str(path))
        path.chmod(0o600)
        path.write_bytes(b"xxxxxxx")
        with open_on_demand(image) as arriving:
            for _ in range(2):
                with pytest.raises(ArrivalError, match="damaged"):
                    arriving.regions["a"].ready(5 * PIECE_SIZE)


def test_a_closed_image_lets_nothing_wait(store: ImageStore) -> None:
    with slow(store) as image:
        arriving = open_on_demand(image)
        failures: list[BaseException] = []

        def wait() -> None:
            try:
                arriving.regions["a"].ready()
            except ArrivalError as error:
                failures.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        while not arriving.profile().pieces:
            threading.Event().wait(0.001)
        closing = threading.Thread(target=arriving.close)
        closing.start()
        waiter.join(30)
        image.gate.release(100)
        closing.join(30)
        assert "closed" in str(failures[0])


def test_a_profile_is_of_one_image_and_lies_beside_its_manifest(store: ImageStore) -> None:
    with store.open("i") as image:
        assert load_profile(store, image) is None
        with open_on_demand(image) as arriving:
            arriving.regions["a"].ready(3 * PIECE_SIZE, 1)
            arriving.regions["b"].ready(0, 1)
            save_profile(store, "i", arriving.profile())
        found = load_profile(store, image)
        assert found is not None
        assert found.pieces == (("a", 3), ("b", 0))
    assert store.names() == ["i"]
    store.collect()
    replaced: Manifest = commit(store, "i", {"a": b"another"})
    with store.open("i") as image:
        assert image.manifest == replaced
        assert load_profile(store, image) is None
    (store.directory / "images" / "i.json.order").write_bytes(b"\xff{}")
    with store.open("i") as image:
        assert load_profile(store, image) is None
