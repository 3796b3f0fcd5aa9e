"""A stream carries an image whole or not at all, sends what is lacking alone, and believes no byte."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpsguard.cli.image_commands.connection import ends_of
from mpsguard.images.store import transfer
from mpsguard.images.store.errors import ImageError, QuotaError, StreamError
from mpsguard.images.store.pieces import PIECE_SIZE
from mpsguard.images.store.store import ImageStore
from mpsguard.images.store.stream_frames import GREETING, Complete, Content, Declined, Offer, Wanted, write_frame
from tests.unit.images.store.samples import commit, content, some_bytes

REGIONS = {
    "weights": some_bytes("weights", PIECE_SIZE) + bytes(PIECE_SIZE) + some_bytes("end", 1000),
    "state": some_bytes("state", 4000),
}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[ImageStore]:
    with ImageStore(tmp_path / "here") as store:
        commit(store, "a", REGIONS, b"state")
        yield store


@pytest.fixture
def there(tmp_path: Path) -> Iterator[ImageStore]:
    with ImageStore(tmp_path / "there") as store:
        yield store


def sent(store: ImageStore, name: str) -> bytes:
    stream = io.BytesIO()
    with store.open(name) as image:
        transfer.send(image, stream)
    return stream.getvalue()


def test_it_arrives_as_it_was(here: ImageStore, there: ImageStore) -> None:
    done = transfer.receive(there, io.BytesIO(sent(here, "a")))
    assert (done.name, done.pieces, done.spared) == ("a", 3, 0)
    assert content(there, "a") == REGIONS
    with here.open("a") as one, there.open("a") as other:
        assert one.manifest == other.manifest


def test_under_another_name(here: ImageStore, there: ImageStore) -> None:
    transfer.receive(there, io.BytesIO(sent(here, "a")), name="b/c")
    assert there.names() == ["b/c"]


def test_an_image_is_not_replaced_unasked(here: ImageStore, there: ImageStore) -> None:
    commit(there, "a", {"mine": b"mine"})
    with pytest.raises(StreamError, match="already"):
        transfer.receive(there, io.BytesIO(sent(here, "a")))
    assert content(there, "a") == {"mine": b"mine"}
    transfer.receive(there, io.BytesIO(sent(here, "a")), replace=True)
    assert content(there, "a") == REGIONS


def test_what_the_receiver_is_said_to_have_is_not_sent(here: ImageStore, there: ImageStore) -> None:
    transfer.receive(there, io.BytesIO(sent(here, "a")))
    commit(here, "b", REGIONS | {"state": b"other"})
    stream = io.BytesIO()
    with here.open("b") as image, here.open("a") as known:
        transfer.send(image, stream, known=known.manifest.pieces().keys())
    assert len(stream.getvalue()) < 3000
    transfer.receive(there, io.BytesIO(stream.getvalue()))
    assert content(there, "b") == content(here, "b")
    with ImageStore(there.directory.parent / "empty") as empty, pytest.raises(StreamError, match="left out 2 pieces"):
        transfer.receive(empty, io.BytesIO(stream.getvalue()))


def test_a_stream_that_breaks_off_leaves_what_came(here: ImageStore, there: ImageStore) -> None:
    data = sent(here, "a")
    with pytest.raises(StreamError, match="broke off"):
        transfer.receive(there, io.BytesIO(data[:-5000]))
    assert there.names() == []
    ends = _Both(here, there, "a")
    assert (ends.sent.pieces, ends.sent.bytes) == (2, 5000)
    assert ends.received.spared == PIECE_SIZE
    assert content(there, "a") == REGIONS


@pytest.mark.parametrize("part", range(0, 100, 7))
def test_a_flipped_bit_is_found(here: ImageStore, there: ImageStore, part: int) -> None:
    data = bytearray(sent(here, "a"))
    data[(len(data) - 1) * part // 99] ^= 8
    try:
        transfer.receive(there, io.BytesIO(data))
    except ImageError:
        assert there.names() == []
    else:
        # A bit of the name.
        assert content(there, *there.names()) == REGIONS


class _Both:
    """A transfer over a pair of sockets, both ends at once."""

    def __init__(self, here: ImageStore, there: ImageStore, name: str, replace: bool = False) -> None:
        one, other = socket.socketpair()
        self._other = other
        thread = threading.Thread(target=self._receive, args=(there, replace))
        self.refused: ImageError | None = None
        thread.start()
        try:
            with ends_of(one) as ends, here.open(name) as image:
                self.sent = transfer.send(image, ends.outgoing, back=ends.incoming)
        finally:
            thread.join(30)

    def _receive(self, there: ImageStore, replace: bool) -> None:
        with ends_of(self._other) as ends:
            try:
                self.received = transfer.receive(there, ends.incoming, back=ends.outgoing, replace=replace)
            except ImageError as error:
                self.refused = error


def test_with_a_way_back_only_what_is_lacking_is_sent(here: ImageStore, there: ImageStore) -> None:
    first = _Both(here, there, "a")
    assert (first.sent.pieces, first.sent.spared) == (3, 0)
    commit(here, "b", REGIONS | {"state": b"other"})
    second = _Both(here, there, "b")
    assert (second.sent.pieces, second.sent.bytes) == (1, 5)
    assert second.sent.spared == second.received.spared == PIECE_SIZE + 1000
    assert content(there, "b") == content(here, "b")


def test_a_refusal_reaches_the_sender(here: ImageStore, there: ImageStore) -> None:
    commit(there, "a", {"mine": b"mine"})
    with pytest.raises(StreamError, match="the receiver refused: there is an image a already"):
        _Both(here, there, "a")


def test_a_full_receiver_says_so(here: ImageStore, tmp_path: Path) -> None:
    with ImageStore(tmp_path / "small", quota=10_000) as small:
        with pytest.raises(StreamError, match=r"refused.*quota"):
            _Both(here, small, "a")
        with pytest.raises(QuotaError):
            transfer.receive(small, io.BytesIO(sent(here, "a")))
        assert small.names() == []


def test_a_refusal_is_told_though_something_was_not_sent_yet() -> None:
    one, other = socket.socketpair()

    def fail() -> None:
        with ends_of(one) as ends:
            ends.outgoing.write(b"a part of a piece")
            other.close()
            raise StreamError("the receiver refused")

    with pytest.raises(StreamError, match="refused"):
        fail()
    assert one.fileno() < 0


def test_a_piece_that_the_image_does_not_need_is_not_stored(here: ImageStore, there: ImageStore) -> None:
    stream = io.BytesIO()
    stream.write(GREETING)
    with here.open("a") as image:
        offer = (here.directory / "images" / "a.json").read_bytes()
        write_frame(stream, Offer("a", offer))
        write_frame(stream, Content(b"something else"))
        assert image.manifest.pieces()
    with pytest.raises(StreamError, match="does not need"):
        transfer.receive(there, io.BytesIO(stream.getvalue()))
    assert there.collect().pieces == 0


def test_what_a_stream_says_is_shown_without_control_characters(there: ImageStore) -> None:
    frame = msgspec.msgpack.encode({"type": "offer", "\x1b[2J": 1})
    with pytest.raises(StreamError, match="unknown field") as error:
        transfer.receive(there, io.BytesIO(GREETING + len(frame).to_bytes(4, "little") + frame))
    assert str(error.value).isprintable()


def test_a_stream_announces_no_more_than_it_may(there: ImageStore) -> None:
    with pytest.raises(StreamError, match="4294967295 bytes"):
        transfer.receive(there, io.BytesIO(GREETING + b"\xff" * 4))
    with pytest.raises(StreamError, match="no stream of an image"):
        transfer.receive(there, io.BytesIO(b"GET / HTTP/1.1\r\n\r\n" + bytes(100)))


FRAMES = st.one_of(
    st.builds(Offer, st.sampled_from(["a", "b/c"]), st.binary(max_size=50)),
    st.builds(Wanted, st.binary(max_size=5)),
    st.builds(Content, st.binary(max_size=50) | st.just(REGIONS["state"])),
    st.builds(Complete),
    st.builds(Declined, st.text(max_size=20)),
    st.binary(max_size=20),
)


@given(st.booleans(), st.lists(FRAMES, max_size=4))
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_hostile_streams_make_no_image(here: ImageStore, there: ImageStore, begin: bool, frames: list[object]) -> None:
    """Anything at all, or behind a real beginning: the image is whole, or there is none."""
    stream = io.BytesIO()
    stream.write(GREETING)
    if begin:
        write_frame(stream, Offer("a", (here.directory / "images" / "a.json").read_bytes()))
    for frame in frames:
        stream.write(frame if isinstance(frame, bytes) else _encoded(frame))
    with suppress(ImageError):
        transfer.receive(there, io.BytesIO(stream.getvalue()), back=io.BytesIO())
    assert there.names() == []


def _encoded(frame: object) -> bytes:
    data = msgspec.msgpack.encode(frame)
    return len(data).to_bytes(4, "little") + data


@given(st.lists(FRAMES, max_size=3))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_hostile_receiver_ends_a_transfer_at_most(here: ImageStore, frames: list[object]) -> None:
    back = io.BytesIO(b"".join(frame if isinstance(frame, bytes) else _encoded(frame) for frame in frames))
    with here.open("a") as image, suppress(StreamError):
        transfer.send(image, io.BytesIO(), back=back)
