"""A region of a session, mapped into this process."""

import os
import weakref
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Final, Self

from mpsguard.vault.client.mapped import layout
from mpsguard.vault.client.mapped.backend import AddressTakenError, Backend, Held
from mpsguard.vault.client.region import Chunk, Region, Writing
from mpsguard.vault.client.session import Session
from mpsguard.vault.wire.errors import LayoutMismatchError, SealedError, UnknownRegionError
from mpsguard.vault.wire.region import LeaseRole

_TRIES: Final = 64
"""Addresses to try for a new region while this process uses them for something else."""


class View:
    """``nbytes`` bytes at the address ``va``, one dimension of uint8; the region stays mapped while a view is alive.

    A view of GPU memory has ``__cuda_array_interface__`` (version 3), so CuPy, Numba and PyTorch use it without a copy;
    a view of host memory has ``__array_interface__``. The interface's stream is None: a consumer that uses its own
    stream must order its work itself.
    """

    def __init__(self, memory: "Memory", va: int, nbytes: int, *, readonly: bool) -> None:
        self._memory = memory
        self.va = va
        self.nbytes = nbytes
        self.readonly = readonly
        """What consumers are told. PyTorch refuses memory declared read-only."""

    def read(self) -> bytes:
        """Return a copy in host memory."""
        return self._memory.backend.read(self.va, self.nbytes)

    def write(self, data: bytes) -> None:
        """Copy ``data`` to the start of the view.

        Raises:
            ValueError: it is larger than the view.
            PermissionError: the region is mapped read-only.
        """
        if not self._memory.writable:
            raise PermissionError(f"region {self._memory.name!r} is mapped read-only")
        if len(data) > self.nbytes:
            raise ValueError(f"{len(data)} bytes for a view of {self.nbytes}")
        self._memory.backend.write(self.va, data)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._memory.backend.gpu is None:
            raise AttributeError("__cuda_array_interface__: this is memory of the host")
        return {**self._array(), "stream": None}

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self._memory.backend.gpu is not None:
            raise AttributeError("__array_interface__: this is memory of a GPU")
        return self._array()

    def _array(self) -> dict[str, Any]:
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.va, self.readonly),
            "strides": None,
            "version": 3,
        }


class Memory:
    """Owns the mapping, its addresses, and the opened region. Returned by `create` and `attach`."""

    def __init__(self, backend: Backend, region: Region, undo: ExitStack, *, writable: bool, made: bool) -> None:
        assert region.layout.va is not None
        self.backend = backend
        self.region = region
        self.writable = writable
        """Whether this process may write to it; the GPU or the kernel enforces this."""
        self.made = made
        """Whether it was created here, rather than attached to."""
        self.va: int = region.layout.va
        self.size: int = region.layout.size
        self.undo = undo
        """Gives back all that was acquired for it."""
        self._views: weakref.WeakSet[View] = weakref.WeakSet()

    @property
    def name(self) -> str:
        """The region's name in its session."""
        return self.region.name

    def view(self, offset: int = 0, nbytes: int | None = None, *, readonly: bool | None = None) -> View:
        """Return a view of ``nbytes`` (None: all that follow) from ``offset`` on.

        Args:
            offset: bytes from the region's start.
            nbytes: size of the view.
            readonly: what consumers are told; None: as the region is mapped. False is for consumers without read-only
                memory (PyTorch). It gives no access: a kernel that writes to a read-only mapping faults, and ends every
                client of its MPS server.

        Raises:
            ValueError: the range is not within the region.
        """
        length = self.size - offset if nbytes is None else nbytes
        if offset < 0 or length < 0 or offset + length > self.size:
            raise ValueError(f"region {self.name!r} has {self.size} bytes, not {length} from {offset} on")
        view = View(self, self.va + offset, length, readonly=not self.writable if readonly is None else readonly)
        self._views.add(view)
        return view

    def writing(self, offset: int = 0, size: int | None = None) -> Writing:
        """Announce a write: see `Region.writing`."""
        return self.region.writing(offset, size)

    def close(self) -> None:
        """Unmap the region, and tell the vault so. Safe to call twice.

        Raises:
            BufferError: a view of it is alive, perhaps in an array or tensor. Work on unmapped memory would end every
                client of the MPS server.
            Exception: the backend's error if a call fails, as all do after a fault; everything else has been released
                then.
        """
        alive = len(self._views)
        if alive:
            raise BufferError(f"region {self.name!r}: {alive} views of it are alive, or arrays made from them")
        with self.backend.entered():
            self.undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # The exception's frames may hold views; the resulting BufferError must not hide the exception.
        with suppress(Exception):
            self.close()


def create(
    session: Session,
    backend: Backend,
    name: str,
    size: int,
    *,
    largest: int | None = None,
    metadata: bytes = b"",
) -> Memory:
    """Allocate memory, map it writable, and give it to the vault as a region.

    Args:
        session: the session.
        backend: the kind of memory.
        name: name of the region.
        size: bytes, rounded up to the granularity.
        largest: maximum bytes of a chunk; None: a single chunk, which is the fastest to map. Chunks can be sealed
            singly.
        metadata: see `Session.create`.

    Raises:
        VaultError: as `Session.create`.
        Exception: the backend's errors. Nothing is left allocated after an exception.
    """
    sizes = layout.chunk_sizes(size, backend.granularity, largest)
    with backend.entered(), ExitStack() as undo, ExitStack() as exported:
        room = layout.room(sum(sizes))
        va = _reserve_somewhere(session, backend, room)
        undo.callback(backend.unreserve, va, room)
        chunks = []
        for start, length in layout.pieces(va, sizes):
            handle = backend.make(length)
            try:
                chunks.append(Chunk(backend.export(handle), length))
                exported.callback(os.close, chunks[-1].fd)
                backend.map(start, length, handle)
            finally:
                backend.drop(handle)
            undo.callback(backend.unmap, start, length)
        backend.allow(va, sum(sizes), writable=True)
        region = session.create(name, chunks, va=va, gpu=backend.gpu, metadata=metadata)
        return _noted(session, Memory(backend, region, undo, writable=True, made=True))


def attach(session: Session, backend: Backend, name: str, *, writable: bool = False) -> Memory:
    """Map a region of the session at its creator's address, read-only unless ``writable``.

    Raises:
        VaultError: as `Session.open`.
        LayoutMismatchError: the region is not such memory.
        SealedError: it is to be written, and a chunk of it is sealed.
        AddressTakenError: this process uses its addresses for something else.
    """
    with backend.entered(), ExitStack() as undo:
        region = undo.enter_context(session.open(name, gpu=backend.gpu))
        va, sizes = region.layout.va, region.layout.sizes
        if va is None or region.layout.gpu != backend.gpu:
            raise LayoutMismatchError(f"region {name!r} has no address, or is not memory of {backend.device}")
        if any(number % backend.granularity for number in (va, *sizes)):
            raise LayoutMismatchError(f"region {name!r} is not made of units of {backend.granularity} bytes")
        if writable and region.sealed:
            raise SealedError(f"region {name!r}: {len(region.sealed)} of {len(sizes)} chunks are sealed")
        if not _take_ahead(session, backend, region, undo, writable=writable):
            room = layout.room(sum(sizes))
            _reserve_exactly(backend, name, va, room)
            undo.callback(backend.unreserve, va, room)
            held = Held()
            undo.callback(held.give_back, backend, va)
            backend.map_all(va, zip(region.fds, sizes, strict=True), held)
            backend.allow(va, sum(sizes), writable=writable)
        return _noted(session, Memory(backend, region, undo, writable=writable, made=False))


def open_or_create(
    session: Session,
    backend: Backend,
    name: str,
    size: int,
    *,
    writable: bool = True,
    largest: int | None = None,
    metadata: bytes = b"",
) -> Memory:
    """Map a region; a writer creates it first if it does not exist (then `Memory.made` is True).

    The same call serves the first start, a standby, a restart while the session is kept, and one after it has expired.
    A process may die before it has filled a new region: publish the first state after filling it, and `Session.state`
    tells.

    Args:
        session: the session.
        backend: the kind of memory.
        name: name of the region.
        size: bytes, rounded up to the granularity; an existing region must have the same size.
        writable: whether an existing region is mapped for writing; False if it is sealed after it was filled.
        largest: of a new region, see `create`.
        metadata: of a new region, see `create`.

    Raises:
        UnknownRegionError: this process is a standby or reader, and there is no such region.
        LayoutMismatchError: the region has another size.
        Exception: as `attach` and `create`.
    """
    try:
        found = attach(session, backend, name, writable=writable)
    except UnknownRegionError:
        if session.role is not LeaseRole.WRITER:
            raise
        return create(session, backend, name, size, largest=largest, metadata=metadata)
    wanted = sum(layout.chunk_sizes(size, backend.granularity, largest))
    if found.size == wanted:
        return found
    found.close()
    raise LayoutMismatchError(f"region {name!r} has {found.size} bytes, not {wanted}: release it, or ask for its size")


def _noted(session: Session, memory: Memory) -> Memory:
    """Let the session know of a mapped region, for its checkpoints, until it is unmapped."""
    session.memory.note_mapped(memory.name, memory)
    memory.undo.callback(session.memory.note_unmapped, memory.name)
    memory.undo = memory.undo.pop_all()
    return memory


def _take_ahead(session: Session, backend: Backend, region: Region, undo: ExitStack, *, writable: bool) -> bool:
    """Take over what this process has mapped of the region before; return False if that is nothing."""
    ahead, wanted = session.memory.take_ahead(region.name), region.layout
    if ahead is None:
        return False
    if wanted.va is None or not ahead.is_of(wanted.va, wanted.sizes, wanted.gpu):
        ahead.undo.close()
        return False
    undo.push(ahead.undo)
    if not writable:
        backend.allow(ahead.va, sum(ahead.sizes), writable=False)
    return True


def _reserve_exactly(backend: Backend, name: str, va: int, size: int) -> None:
    got = backend.reserve(va, size)
    if got != va:
        backend.unreserve(got, size)
        raise AddressTakenError(f"region {name!r} belongs at {va:#x}, where this process has something else")


def _reserve_somewhere(session: Session, backend: Backend, size: int) -> int:
    taken = []
    for name in session.names():
        there = session.describe(name).layout
        if there.va is not None:
            taken.append(layout.Range(there.va, there.va + there.size))
    for _ in range(_TRIES):
        va = layout.place(size, taken)
        got = backend.reserve(va, size)
        if got == va:
            return va
        backend.unreserve(got, size)
        taken.append(layout.Range(va, va + size))
    raise AddressTakenError(f"{_TRIES} places for {size} bytes, and something of this process in each of them")
