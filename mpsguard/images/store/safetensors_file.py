"""Images out of files of safetensors, and back, bit by bit and without a library of tensors.

A file becomes one region. Its tensors are laid out in the file's order at multiples of 256 bytes, so that they can be
used where they are. The library reads and checks headers; a header is written here, since the library wants all tensors
in memory at once for that, and is read back by the library before the file gets its name.
"""

from __future__ import annotations

import os
import secrets
import stat
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from safetensors import SafetensorError, safe_open

from mpsguard.images.store.errors import TensorFileError, os_errors
from mpsguard.images.store.image import Image
from mpsguard.images.store.manifest import DTYPE_BITS, RegionImage, TensorImage
from mpsguard.images.store.pieces import PIECE_SIZE, Digest, piece_count, piece_size
from mpsguard.images.store.store_files import write_all
from mpsguard.images.store.writer import ImageWriter
from mpsguard.linux.processes.procfs import printable

ALIGNMENT: Final = 256
"""Of tensors in a region, in bytes: that of memory which CUDA allocates."""
_MOST_METADATA: Final = 64 << 10
_READERS: Final = min(8, len(os.sched_getaffinity(0)))
AHEAD: Final = 2 * _READERS
"""Pieces that are read or wait to be, at most: so many are in memory."""
_LENGTH: Final = struct.Struct("<Q")
_DTYPE_ORDER: Final = {dtype: number for number, dtype in enumerate(DTYPE_BITS)}


class Span(NamedTuple):
    """Bytes of a region that are also in a file."""

    at: int
    """In the region."""
    size: int
    in_file: int
    """Where they are in the file."""


def by_piece(spans: Iterable[Span], size: int) -> Iterator[tuple[int, list[Span]]]:
    """Yield, for each piece of a region of ``size`` bytes, its size and the spans within it, relative to it."""
    waiting = sorted((span for span in spans if span.size), reverse=True)
    active: list[Span] = []
    start = 0
    for index in range(piece_count(size)):
        length = piece_size(size, index)
        while waiting and waiting[-1].at < start + length:
            active.append(waiting.pop())
        yield length, [_within(span, start, length) for span in active]
        start += length
        active = [span for span in active if span.at + span.size > start]


def _within(span: Span, start: int, length: int) -> Span:
    low, high = max(span.at, start), min(span.at + span.size, start + length)
    return Span(low - start, high - low, span.in_file + low - span.at)


class Metadata(msgspec.Struct, frozen=True):
    """The metadata of a region that was made of a file."""

    safetensors: dict[str, str]
    """What the file has under ``__metadata__``."""


class FileTensors(NamedTuple):
    """A file of tensors that is open, with a layout for its region."""

    fd: int
    size: int
    """Of the region, in bytes: whole pieces, so that the region can be one of a GPU."""
    tensors: tuple[TensorImage, ...]
    spans: list[Span]
    metadata: dict[str, str]


@contextmanager
def opened(path: Path, region: str) -> Iterator[FileTensors]:
    """Open a file of tensors, for a region of that name.

    Raises:
        TensorFileError: there is no such file, or it is none of tensors.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise TensorFileError(f"{path}: {error.strerror}") from None
    try:
        yield _read_header(fd, path, region)
    finally:
        os.close(fd)


def _read_header(fd: int, path: Path, region: str) -> FileTensors:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise TensorFileError(f"{path}: no regular file")
    tensors, spans = [], []
    at = 0
    try:
        # By the descriptor, so that it is the same file.
        with safe_open(f"/proc/self/fd/{fd}", framework="np") as file:
            in_file = _LENGTH.size + _LENGTH.unpack(os.pread(fd, _LENGTH.size, 0))[0]
            for name in file.offset_keys():
                part = file.get_slice(name)
                tensor = TensorImage(name, part.get_dtype(), tuple(part.get_shape()), region, at)
                tensors.append(tensor)
                spans.append(Span(at, tensor.size, in_file))
                # The library refuses files with gaps between tensors.
                in_file += tensor.size
                at += -(-tensor.size // ALIGNMENT) * ALIGNMENT
            # The library has them in no order.
            metadata = dict(sorted((file.metadata() or {}).items()))
    except (SafetensorError, OSError, ValueError, UnicodeDecodeError) as error:
        raise TensorFileError(f"{path}: no file of safetensors, or a damaged one: {_line(error)}") from None
    if in_file != found.st_size:
        raise TensorFileError(f"{path}: its tensors take {in_file} bytes, and the file has {found.st_size}")
    if not tensors:
        raise TensorFileError(f"{path}: there is no tensor in it")
    if sum(len(key) + len(value) for key, value in metadata.items()) > _MOST_METADATA:
        raise TensorFileError(f"{path}: its metadata take more than {_MOST_METADATA} bytes")
    return FileTensors(fd, max(1, -(-at // PIECE_SIZE)) * PIECE_SIZE, tuple(tensors), spans, metadata)


def _line(error: Exception) -> str:
    return printable(" ".join(str(error).split()))


def read_into(
    draft: ImageWriter, file: FileTensors, path: Path, region: str, moved: Callable[[int], object] = int
) -> RegionImage:
    """Put the tensors of a file into a draft, several pieces at once, and return the region.

    Args:
        draft: where to.
        file: from `opened`.
        path: its name, for the texts of errors.
        region: name of the region.
        moved: called with the number of bytes of each piece that is done.

    Raises:
        TensorFileError: the file cannot be read, or became shorter.
        ImageError: as `ImageWriter.put`.
    """
    pieces: list[Digest | None] = []
    running: deque[tuple[int, Future[Digest | None]]] = deque()

    def put(length: int, spans: list[Span]) -> Digest | None:
        piece = bytearray(length)
        view = memoryview(piece)
        for span in spans:
            _read_exactly(file.fd, view[span.at : span.at + span.size], span.in_file, path)
        return draft.put(piece)

    def take() -> None:
        length, first = running.popleft()
        pieces.append(first.result())
        moved(length)

    with ThreadPoolExecutor(_READERS) as readers:
        try:
            for length, spans in by_piece(file.spans, file.size):
                running.append((length, readers.submit(put, length, spans)))
                if len(running) > AHEAD:
                    take()
            while running:
                take()
        except BaseException:
            readers.shutdown(wait=False, cancel_futures=True)
            raise
    metadata = msgspec.json.encode(Metadata(file.metadata)) if file.metadata else b""
    return RegionImage(region, (file.size,), tuple(pieces), metadata=metadata)


def _read_exactly(fd: int, view: memoryview, at: int, path: Path) -> None:
    while view:
        try:
            count = os.preadv(fd, [view], at)
        except OSError as error:
            raise TensorFileError(f"{path}: {error.strerror}") from None
        if not count:
            raise TensorFileError(f"{path}: it became shorter while it was read")
        view, at = view[count:], at + count


def write(image: Image, path: Path, *, replace: bool, moved: Callable[[int], object] = int) -> None:
    """Write the tensors of an image into a file: the same that the library would write.

    Args:
        image: where from.
        path: of the file; it appears as a whole, when all of it is on disk.
        replace: whether it may be there already.
        moved: called with the number of bytes of each piece that is done.

    Raises:
        TensorFileError: the image has no tensors, or the file cannot be written, or is there already, or something else
            than a regular file is.
        StoreFullError: there is no room for the file.
        DamagedError: a piece of the image is damaged; there is no new file.
    """
    if not image.manifest.tensors:
        raise TensorFileError(f"image {image.name}: there is no tensor in it, but regions of bytes alone")
    with os_errors(str(path), TensorFileError):
        _check_place(path, replace=replace)
    beside = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")
    try:
        with os_errors(str(path), TensorFileError):
            fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                _write_content(image, fd, moved)
                _check(fd, path, len(image.manifest.tensors))
                os.fsync(fd)
            finally:
                os.close(fd)
            beside.replace(path)
    finally:
        with suppress(OSError):
            beside.unlink()


def _check_place(path: Path, *, replace: bool) -> None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    # A device would be gone: a rename puts the file in its place.
    if not stat.S_ISREG(found.st_mode):
        raise TensorFileError(f"{path}: something is there that is no regular file")
    if not replace:
        raise TensorFileError(f"{path}: is there already; --replace puts another file in its place")


def _write_content(image: Image, fd: int, moved: Callable[[int], object]) -> None:
    tensors = sorted(image.manifest.tensors, key=lambda tensor: (-_DTYPE_ORDER[tensor.dtype], tensor.name))
    head: dict[str, object] = {}
    if metadata := _metadata(image):
        head["__metadata__"] = metadata
    spans: dict[str, list[Span]] = {region.name: [] for region in image.manifest.regions}
    size = 0
    for tensor in tensors:
        head[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": (size, size + tensor.size),
        }
        spans[tensor.region].append(Span(tensor.offset, tensor.size, size))
        size += tensor.size
    header = msgspec.json.encode(head)
    header += b" " * (-len(header) % _LENGTH.size)
    write_all(fd, _LENGTH.pack(len(header)) + header)
    start = _LENGTH.size + len(header)
    # What is all zero is not written: a file is that where nothing was.
    os.ftruncate(fd, start + size)
    for region in image.manifest.regions:
        piece = bytearray(PIECE_SIZE)
        for digest, (length, parts) in zip(region.pieces, by_piece(spans[region.name], region.size), strict=True):
            if parts and digest is not None:
                view = memoryview(piece)[:length]
                image.read_into(digest, view)
                for part in parts:
                    _write_exactly(fd, view[part.at : part.at + part.size], start + part.in_file)
            moved(length)


def _write_exactly(fd: int, view: memoryview, at: int) -> None:
    while view:
        count = os.pwrite(fd, view, at)
        view, at = view[count:], at + count


def _metadata(image: Image) -> dict[str, str]:
    found: dict[str, str] = {}
    for region in image.manifest.regions:
        # Of a region that an application made, they are in a form of its own.
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            found |= msgspec.json.decode(region.metadata, type=Metadata).safetensors
    return found


def _check(fd: int, path: Path, tensors: int) -> None:
    try:
        with safe_open(f"/proc/self/fd/{fd}", framework="np") as file:
            if len(file.keys()) == tensors:
                return
    except (SafetensorError, OSError) as error:
        raise TensorFileError(f"{path}: the tensors of this image fit no file of safetensors: {_line(error)}") from None
    raise TensorFileError(f"{path}: the tensors of this image fit no file of safetensors")
