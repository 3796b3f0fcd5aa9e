"""The zone table of a program under the preload: which region, and how far outside, an address is.

The table is a memfd that the program made (mpsguard/preload/zone_table.h has its layout). A process with a copy of its
descriptor reads it with `read`, while the program runs or after its end. The program can write what it likes into it:
every number is checked, and a table that lies about itself is refused or says wrong things about that program only.
"""

import fcntl
import os
import stat
import struct
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

NAME: Final = "mpsguard-zones"
"""The memfd's name; /proc/PID/fd shows it as `LINK`."""
LINK: Final = f"/memfd:{NAME} (deleted)"

MOST_OF_A_PROCESS: Final = 4
"""Tables looked at: the preload's, and one for each space that the program made itself (mpsguard.preload.zones)."""

MAGIC: Final = b"MPSGZON1"
VERSION: Final = 1
HEADER: Final = struct.Struct("<8sIIIIII")
"""Magic, version, `HEADER_BYTES`, bytes of a slot, slots, pid, counters."""
HEADER_BYTES: Final = 4096
SERVICE_AT: Final = 32
SERVICE_BYTES: Final = 16
"""The name of the program's service (mpsguard/preload/service.h); zeros where there is none."""
COUNTERS_AT: Final = 64
SLOT: Final = struct.Struct("<IIQQQQQQIi")
"""As `encode` writes it."""
_MOST_SLOTS: Final = 8192
"""As many as every table has that is made by this version; each costs a reader a quarter of a microsecond."""
_MOVE_AT: Final = 3968
"""`mpsguard.preload.second_move` reads and writes from here on, and `mpsguard.preload.second_claim` behind it."""
_MOST_COUNTERS: Final = (_MOVE_AT - COUNTERS_AT) // 8
_ADDRESSES: Final = 1 << 57
"""No user address is higher, with five levels of page tables."""

_LIVE: Final = 1
_FRONT_ARMED: Final = 2
_BACK_ARMED: Final = 4
_SLAB: Final = 8

_READS: Final = 5
"""How often the table is read again while slots are being written."""

COUNTERS: Final = (
    "placed",
    "placed_small",
    "freed",
    "reused",
    "deferred",
    "shed",
    "plain_small",
    "plain_async",
    "plain_ipc",
    "plain_capture",
    "plain_devices",
    "plain_device",
    "plain_caller",
    "plain_context",
    "plain_unarmed",
    "plain_driver",
    "plain_memory",
    "ipc_refused",
    "unlisted",
    "rebound",
    "settings_refused",
    "plain_pool",
    "plain_stream",
    "ordered",
    "ordered_reused",
    "ordered_released",
    "ordered_unmarked",
    "ordered_lost",
    "ipc_exported",
    "ipc_imported",
    "snapshot_exported",
    "unopened",
)
"""In the order of mpsguard/preload/counters.h, which says what they count."""


class TableError(Exception):
    """This is no zone table that can be read; the text says why."""


class Part(StrEnum):
    """Where in a region an address is."""

    FRONT = "front zone"
    MEMORY = "memory"
    BACK = "back zone"


class ZoneRegion(msgspec.Struct, frozen=True):
    """One live region; addresses and sizes in bytes."""

    number: int
    """Counted from 1 in the order in which the program's regions were made; it wraps after 2**32."""
    device: int
    start: int
    """Where the front zone begins."""
    front: int
    memory: int
    back: int
    user: int
    """The address that the program got."""
    size: int
    """What the program asked for; of a slab, all that small allocations share."""
    front_armed: bool
    back_armed: bool
    slab: bool

    @property
    def end(self) -> int:
        """One past the back zone."""
        return self.start + self.front + self.memory + self.back


class LocatedAddress(msgspec.Struct, frozen=True):
    """An address, as seen from a region."""

    region: ZoneRegion
    part: Part
    armed: bool
    """Whether an access there is absorbed and reported."""
    offset: int
    """From the program's address: negative before it, at least ``region.size`` past its end."""

    @property
    def beyond(self) -> int:
        """Bytes past the end (1: the first byte behind it) or before the start (negative); 0 inside."""
        if self.offset < 0:
            return self.offset
        return max(self.offset - self.region.size + 1, 0)


class ZoneTable(msgspec.Struct, frozen=True):
    """A zone table at one moment."""

    pid: int
    """As the program sees itself, which in a container is not what the host sees."""
    counters: dict[str, int]
    regions: tuple[ZoneRegion, ...]
    """By address; they do not overlap."""
    unreadable: int
    """Slots that were being written, or make no sense."""
    service: bytes | None = None
    """Name of the socket at which the program's memory can be asked for (`mpsguard.images.snapshot`); None: at none."""

    def locate(self, address: int) -> LocatedAddress | None:
        """Return the region with ``address`` in its memory or zones; None if none has it."""
        for region in self.regions:
            if region.start <= address < region.end:
                return _place(region, address)
        return None


def _place(region: ZoneRegion, address: int) -> LocatedAddress:
    offset = address - region.user
    memory = region.start + region.front
    if address < memory:
        return LocatedAddress(region, Part.FRONT, region.front_armed, offset)
    if address < memory + region.memory:
        return LocatedAddress(region, Part.MEMORY, armed=False, offset=offset)
    return LocatedAddress(region, Part.BACK, region.back_armed, offset)


def read_block(fd: int, size: int, at: int, what: str) -> bytes:
    """Return a block that the program writes at any time, read twice alike; TableError, with ``what`` it is."""
    before = os.pread(fd, size, at)
    for _ in range(_READS):
        after = os.pread(fd, size, at)
        if after == before:
            return after
        before = after
    raise TableError(f"{what} is being written all the time")


def read(fd: int) -> ZoneTable:
    """Read the table behind ``fd``, a descriptor of the program's memfd or a copy of it; `TableError` if it is none.

    Nothing waits for the program: a file that could make a reader wait is no memfd, and is refused before it is read.
    """
    check_is_memfd(fd)
    before = _contents(fd)
    for left in reversed(range(_READS)):
        after = _contents(fd)
        table = decode(before, after)
        if not table.unreadable:
            break
        before = after if left else before
    return table


def locate(fd: int, address: int) -> LocatedAddress | None:
    """Return the region with ``address`` in its memory or zones, without reading the others.

    Raises:
        TableError: ``fd`` is no table.

    What it costs is bounded whatever the table says: one look at each slot, and some at the one that is meant.
    """
    check_is_memfd(fd)
    contents = _contents(fd)
    header, slots, _, _ = _check_header(contents)
    body = contents[header : header + slots * SLOT.size]
    meant = [
        index
        for index, word in enumerate(SLOT.iter_unpack(body))
        if word[1] & _LIVE and word[2] <= address < word[2] + word[3] + word[4] + word[5]
    ]
    if len(meant) != 1:
        return None  # regions do not overlap: a table in which they do lies
    at = header + meant[0] * SLOT.size
    before = contents[at : at + SLOT.size]
    for _ in range(_READS):
        after = os.pread(fd, SLOT.size, at)
        if after == before and len(after) == SLOT.size:
            region = _region(SLOT.unpack(after))
            return _place(region, address) if region is not None and region.start <= address < region.end else None
        before = after
    return None


def check_is_memfd(fd: int) -> None:
    """Raise TableError for a file that could make its reader wait."""
    # Asking for seals is answered by the kernel for memory files only, and without asking a file system.
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise TableError(f"not a memory file: {error.strerror}") from None
    wanted = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    if seals & wanted != wanted or not stat.S_ISREG(os.fstat(fd).st_mode):
        raise TableError("a memory file whose size is not sealed")


def _contents(fd: int) -> bytes:
    most = HEADER_BYTES + _MOST_SLOTS * SLOT.size
    contents = b""
    while len(contents) < most and (piece := os.pread(fd, most - len(contents), len(contents))):
        contents += piece
    return contents


def decode(contents: bytes, later: bytes | None = None) -> ZoneTable:
    """The table in ``contents``; `TableError` if the header is not one of this version.

    ``later`` is a second reading of the same: a slot that has changed in between may have been read half.
    """
    header, slots, pid, counters = _check_header(contents)
    slot = SLOT.size
    values = struct.unpack_from(f"<{counters}Q", contents, COUNTERS_AT)
    found = []
    for at in range(header, header + slots * slot, slot):
        word = SLOT.unpack_from(contents, at)
        steady = later is None or contents[at : at + slot] == later[at : at + slot]
        if word[0] & 1 or not steady or word[1] & _LIVE:
            found.append(_region(word) if steady else None)
    regions = sorted((region for region in found if region is not None), key=lambda region: region.start)
    apart = _without_overlaps(regions)
    # A later version may count more, and this one less.
    service = contents[SERVICE_AT : SERVICE_AT + SERVICE_BYTES]
    return ZoneTable(
        pid=pid,
        counters=dict(zip(COUNTERS, values, strict=False)),
        regions=apart,
        unreadable=len(found) - len(apart),
        service=service if any(service) else None,
    )


def check_head(contents: bytes) -> None:
    """Raise TableError for contents that do not begin as a table of this version does."""
    if len(contents) < HEADER.size:
        raise TableError(f"{len(contents)} bytes are no table")
    magic, version = HEADER.unpack_from(contents)[:2]
    if magic != MAGIC or version != VERSION:
        raise TableError(f"magic {magic!r}, version {version}: {MAGIC!r}, {VERSION} is expected")


def _check_header(contents: bytes) -> tuple[int, int, int, int]:
    """Bytes of the header, slots, pid and counters; `TableError`."""
    if len(contents) < HEADER_BYTES:
        raise TableError(f"{len(contents)} bytes: at least {HEADER_BYTES} are needed")
    check_head(contents)
    _, _, header, slot, slots, pid, counters = HEADER.unpack_from(contents)
    if header != HEADER_BYTES or slot != SLOT.size or slots > _MOST_SLOTS or counters > _MOST_COUNTERS:
        raise TableError(
            f"header of {header} bytes, {slots} slots of {slot} bytes, {counters} counters: not of version 1"
        )
    if len(contents) < header + slots * slot:
        raise TableError(f"{len(contents)} bytes are too few for {slots} slots")
    return header, slots, pid, counters


def _region(word: tuple[int, ...]) -> ZoneRegion | None:
    """The region in a slot; None if it is being written, or cannot be one."""
    sequence, flags, start, front, memory, back, user, size, number, device = word
    region = ZoneRegion(
        number=number,
        device=device,
        start=start,
        front=front,
        memory=memory,
        back=back,
        user=user,
        size=size,
        front_armed=bool(flags & _FRONT_ARMED),
        back_armed=bool(flags & _BACK_ARMED),
        slab=bool(flags & _SLAB),
    )
    inside = start + front <= user and user + size <= start + front + memory
    if sequence & 1 or region.end > _ADDRESSES or not inside or size == 0 or device < 0:
        return None
    return region


def encode(region: ZoneRegion, sequence: int) -> bytes:
    """A region's slot; ``sequence`` is odd while it is written."""
    flags = _LIVE | _FRONT_ARMED * region.front_armed | _BACK_ARMED * region.back_armed | _SLAB * region.slab
    return SLOT.pack(
        sequence,
        flags,
        region.start,
        region.front,
        region.memory,
        region.back,
        region.user,
        region.size,
        region.number,
        region.device,
    )


def _without_overlaps(regions: Sequence[ZoneRegion]) -> tuple[ZoneRegion, ...]:
    kept: list[ZoneRegion] = []
    for region in regions:
        if not kept or kept[-1].end <= region.start:
            kept.append(region)
    return tuple(kept)
