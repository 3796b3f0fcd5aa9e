"""The copying process: one allocation after the other, from the program's memory into a file.

It has CUDA and the program's descriptors, so it is one that can be killed at any time.
"""

import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from numpy.lib import format as npy

from mpsguard.images.snapshot import document, messages
from mpsguard.images.snapshot.document import Allocation, AllocationKind, Skipped, SnapshotDocument, not_included
from mpsguard.images.snapshot.draft import SnapshotDraft, disk_error
from mpsguard.images.snapshot.errors import FailureKind, SnapshotError
from mpsguard.images.snapshot.memory import BadOfferError, MemoryReader, Readers
from mpsguard.images.snapshot.memory_requests import MemoryOffer, MemoryRequests, RegionGoneError, RegionRefusedError
from mpsguard.images.snapshot.messages import Copied, Expected, Message, SnapshotFailed, Whole
from mpsguard.images.snapshot.program import PreloadedProgram
from mpsguard.preload.zone_table import ZoneRegion

_MARGIN: Final = 1 << 20
"""Bytes of room for `allocations.json` and the headers of the files, besides 256 for each allocation."""


class SnapshotRun:
    """One snapshot of one program, into one draft.

    At most one allocation's memory is held at a time: what the program frees meanwhile is given back as soon as its
    copying ends.
    """

    def __init__(
        self, program: PreloadedProgram, draft: SnapshotDraft, deadline: float, tell: Callable[[Message], None]
    ) -> None:
        """``deadline``: seconds for each answer of the program."""
        self._program = program
        self._draft = draft
        self._deadline = deadline
        self._tell = tell
        self._readers = Readers()
        self._copied = 0
        self._skipped: list[Skipped] = []

    def take(self) -> None:
        """Write all files and wait for the disk; raise SnapshotError."""
        began, clock = time.time(), time.monotonic()
        table = self._program.table()
        assert table.service is not None
        expected = sum(region.size for region in table.regions)
        self._draft.check_room(expected + _MARGIN + 256 * len(table.regions))
        self._tell(Expected(len(table.regions), expected))
        requests = MemoryRequests(self._program.key.pid, table.service, self._deadline)
        allocations = [made for region in table.regions if (made := self._one(requests, region)) is not None]
        missing = not_included(self._program.table())
        whole = SnapshotDocument(
            format=document.FORMAT,
            pid=self._program.key.pid,
            start_ticks=self._program.key.start_ticks,
            uid=self._program.uid,
            command=self._program.command,
            began=began,
            ended=time.time(),
            note=document.NOTE,
            allocations=tuple(allocations),
            skipped=tuple(self._skipped),
            not_included=missing,
        )
        self._write(document.NAME, iter([msgspec.json.format(msgspec.json.encode(whole)) + b"\n"]))
        self._draft.sync()
        self._tell(
            Whole(
                allocations=len(allocations),
                bytes=sum(each.size for each in allocations),
                skipped=len(self._skipped),
                not_included=sum(each.count is not None for each in missing),
                seconds=time.monotonic() - clock,
            )
        )

    def _one(self, requests: MemoryRequests, region: ZoneRegion) -> Allocation | None:
        """Copy a region's allocation; None, with the reason noted, if it cannot be copied."""
        try:
            offer = requests.ask(region.start, region.number)
        except RegionGoneError:
            self._skip(region, "freed before it was copied")
            return None
        except RegionRefusedError as error:
            self._skip(region, str(error))
            return None
        began = time.time()
        try:
            reader = self._readers.of(offer.gpu)
        except BaseException:
            os.close(offer.fd)
            raise
        file = f"{offer.address:#018x}.npy"
        self._copied += offer.size
        if self._copied > reader.total:
            os.close(offer.fd)
            raise SnapshotError(f"process {self._program.key.pid} claims more memory than the GPU has")
        try:
            with reader.pieces(offer) as pieces:
                self._write(file, self._file(offer, pieces))
        except BadOfferError as error:
            raise SnapshotError(f"process {self._program.key.pid}, allocation {offer.address:#x}: {error}") from None
        return _described(region, offer, reader, file, began)

    def _skip(self, region: ZoneRegion, reason: str) -> None:
        self._skipped.append(Skipped(region.user, region.size, reason))

    def _file(self, offer: MemoryOffer, pieces: Iterator[memoryview]) -> Iterator[bytes | memoryview]:
        yield _header(offer.size)
        for piece in pieces:
            yield piece
            self._tell(Copied(len(piece)))

    def _write(self, name: str, pieces: Iterator[bytes | memoryview]) -> None:
        try:
            self._draft.write(name, pieces)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise disk_error(error, name) from None


def _header(size: int) -> bytes:
    """Return what an .npy file of so many bytes begins with."""
    into = io.BytesIO()
    npy.write_array_header_1_0(into, {"descr": "|u1", "fortran_order": False, "shape": (size,)})
    return into.getvalue()


def _described(region: ZoneRegion, offer: MemoryOffer, reader: MemoryReader, file: str, began: float) -> Allocation:
    ordered = AllocationKind.ORDERED if offer.ordered else AllocationKind.LARGE
    return Allocation(
        file=file,
        address=offer.address,
        size=offer.size,
        kind=AllocationKind.SLAB if offer.slab else ordered,
        freed=offer.freed,
        number=region.number,
        device=region.device,
        gpu=reader.gpu,
        began=began,
        ended=time.time(),
    )


def main(pid: int, deadline: float, parent: int, draft_name: str) -> int:
    """Take a snapshot; return the exit status.

    Args:
        pid: of the program.
        deadline: seconds for each of its answers.
        parent: descriptor of the directory with the draft.
        draft_name: of the draft in it.
    """
    draft = SnapshotDraft(parent, draft_name)
    try:
        try:
            with PreloadedProgram(pid) as program:
                SnapshotRun(program, draft, deadline, _tell).take()
        except SnapshotError as error:
            draft.discard()
            _tell(SnapshotFailed(error.kind, str(error)))
        except Exception as error:
            draft.discard()
            _tell(SnapshotFailed(FailureKind.FAILED, f"{type(error).__name__}: {error}"))
    except BrokenPipeError:
        # The command has ended, by a signal: its snapshot is of no use to it any more.
        draft.discard()
        return 1
    return 0


def _tell(message: Message) -> None:
    line = messages.encode(message)
    assert os.write(sys.stdout.fileno(), line) == len(line)
