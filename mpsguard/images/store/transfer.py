"""Sending an image over a stream and receiving it, with or without a way back.

With a way back, only what the receiver lacks is sent. What came stays in its store until the next collection, also if
the stream breaks off: a second try sends, or writes, the rest alone.
"""

from collections.abc import Callable, Collection
from contextlib import suppress

import msgspec

from mpsguard.images.store import manifest as manifests
from mpsguard.images.store.errors import ImageError, StreamError, UnknownImageError
from mpsguard.images.store.image import Image
from mpsguard.images.store.manifest import Manifest
from mpsguard.images.store.pieces import Digest, piece_digest
from mpsguard.images.store.store import ImageStore
from mpsguard.images.store.stream_frames import (
    GREETING,
    MOST_MANIFEST,
    MOST_PIECE,
    MOST_WANTED,
    Complete,
    Content,
    Declined,
    Offer,
    Readable,
    Wanted,
    Writable,
    read_frame,
    read_greeting,
    write_frame,
)
from mpsguard.images.store.writer import ImageWriter
from mpsguard.linux.processes.procfs import printable


class Transferred(msgspec.Struct, frozen=True):
    """What was transferred."""

    name: str
    pieces: int
    bytes: int
    """Of these pieces."""
    spared: int
    """Bytes of pieces that the receiver had already."""


def send(
    image: Image,
    stream: Writable,
    *,
    back: Readable | None = None,
    known: Collection[Digest] = (),
    moved: Callable[[int], object] = int,
) -> Transferred:
    """Send an image.

    Args:
        image: to send.
        stream: where to.
        back: where the receiver answers; None if it cannot.
        known: pieces that the receiver has; not sent.
        moved: called with the size of each piece that is sent, or need not be.

    Raises:
        StreamError: the receiver is gone, or refuses.
        DamagedError: a piece of the image is damaged.
    """
    needed = image.manifest.pieces()
    count = size = 0
    try:
        stream.write(GREETING)
        write_frame(stream, Offer(image.name, manifests.encode(image.manifest)))
        stream.flush()
        wanted = set(needed) - set(known) if back is None else _wanted(back, list(needed))
        for digest, length in needed.items():
            if digest in wanted:
                data = bytearray(length)
                image.read_into(digest, data)
                write_frame(stream, Content(bytes(data)))
                count, size = count + 1, size + length
            moved(length)
        write_frame(stream, Complete())
        stream.flush()
    except OSError as error:
        # The receiver closes after a refusal; what it said may still be there.
        if back is not None:
            _answer(back)
        raise StreamError(f"the receiver is gone: {error.strerror or error}") from None
    if back is not None:
        _answer(back)
    return Transferred(image.name, count, size, sum(needed.values()) - size)


def _wanted(back: Readable, digests: list[Digest]) -> set[Digest]:
    match read_frame(back, MOST_WANTED):
        case Wanted(bits) if len(bits) == -(-len(digests) // 8):
            return {digest for index, digest in enumerate(digests) if bits[index // 8] >> index % 8 & 1}
        case Declined(text):
            raise StreamError(f"the receiver refused: {printable(text)}")
        case _:
            raise StreamError("the receiver does not say what it needs")


def _answer(back: Readable) -> None:
    match read_frame(back, MOST_PIECE):
        case Complete():
            return
        case Declined(text):
            raise StreamError(f"the receiver refused: {printable(text)}")
        case _:
            raise StreamError("the receiver does not say that the image is on its disk")


def receive(
    store: ImageStore,
    stream: Readable,
    *,
    back: Writable | None = None,
    name: str | None = None,
    replace: bool = False,
    begun: Callable[[Manifest], object] = id,
    moved: Callable[[int], object] = int,
) -> Transferred:
    """Receive an image, and return when it is on disk.

    Args:
        store: where to.
        stream: where from.
        back: where to answer; None if that is not possible.
        name: of the image; None takes the sender's.
        replace: whether there may be an image of that name already.
        begun: called with the manifest.
        moved: called with the size of each piece that came, or was here.

    Raises:
        StreamError: the stream broke off, or something else came.
        ImageError: as `ImageWriter.put` and `ImageWriter.commit`.
    """
    try:
        read_greeting(stream)
        offer = read_frame(stream, MOST_MANIFEST)
        if not isinstance(offer, Offer):
            raise StreamError("the stream does not begin with an image")
        manifest = manifests.decode(offer.manifest, offer.name)
        name = offer.name if name is None else name
        if not replace and _is_there(store, name):
            raise StreamError(f"there is an image {name} already; `image pull --replace` puts another one in its place")
        begun(manifest)
        with store.begin(name) as draft:
            done = _receive_pieces(draft, manifest, stream, back, moved)
            draft.commit(manifest)
    except ImageError as error:
        if back is not None:
            with suppress(OSError):
                write_frame(back, Declined(str(error)[:1000]))
                back.flush()
        raise
    if back is not None:
        with suppress(OSError):
            write_frame(back, Complete())
            back.flush()
    return done


def _receive_pieces(
    draft: ImageWriter,
    manifest: Manifest,
    stream: Readable,
    back: Writable | None,
    moved: Callable[[int], object],
) -> Transferred:
    needed = manifest.pieces()
    missing = {digest for digest in needed if not draft.has(digest)}
    spared = sum(needed.values()) - sum(needed[digest] for digest in missing)
    moved(spared)
    if back is not None:
        try:
            write_frame(back, Wanted(_bits(list(needed), missing)))
            back.flush()
        except OSError as error:
            raise StreamError(f"the sender is gone: {error.strerror or error}") from None
    count = size = 0
    while isinstance(frame := read_frame(stream, MOST_PIECE), Content):
        length = len(frame.data)
        came = piece_digest(frame.data) if frame.data else None
        # What the image does not need would fill the disk.
        if came is None or needed.get(came) != length:
            raise StreamError("a piece came that the image does not need, or that changed on its way")
        count, size = count + 1, size + length
        if came in missing:
            draft.put(frame.data)
            missing.remove(came)
            moved(length)
    if not isinstance(frame, Complete):
        raise StreamError("something else came than a piece")
    if missing:
        raise StreamError(f"the sender left out {len(missing)} pieces that are not here")
    return Transferred(draft.name, count, size, spared)


def _bits(digests: list[Digest], chosen: set[Digest]) -> bytes:
    bits = bytearray(-(-len(digests) // 8))
    for index, digest in enumerate(digests):
        if digest in chosen:
            bits[index // 8] |= 1 << index % 8
    return bytes(bits)


def _is_there(store: ImageStore, name: str) -> bool:
    try:
        store.open(name).close()
    except UnknownImageError:
        return False
    except ImageError:
        return True
    return True
