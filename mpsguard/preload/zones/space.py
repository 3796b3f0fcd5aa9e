"""All regions with zones of a process: allocated, accounted for, listed in the zone table, and freed."""

import os
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from mpsguard.preload import zone_layout
from mpsguard.preload.zone_layout import ZoneLayout
from mpsguard.preload.zone_table import ZoneRegion as Entry
from mpsguard.preload.zones import budget
from mpsguard.preload.zones.driver import Context, CudaDriver, Driver
from mpsguard.preload.zones.errors import NoZonesError, UvmError, ZoneCudaError, ZoneError
from mpsguard.preload.zones.settings import ZoneKind, ZoneSettings
from mpsguard.preload.zones.table import TableWriter
from mpsguard.preload.zones.undo import Undo
from mpsguard.preload.zones.uvm import Uvm

_NUMBERS: Final = 1 << 32


class ZonedRegion:
    """Returned by `ZoneSpace.allocate`; owns its memory until `close`.

    It can be passed to consumers of `__cuda_array_interface__`: `torch.as_tensor(region, device="cuda")` is a tensor of
    bytes in this memory, without a copy.
    """

    def __init__(self, space: "ZoneSpace", number: int, address: int, size: int) -> None:
        self._space = space
        self._number = number
        self._address = address
        self._size = size

    @property
    def address(self) -> int:
        """Device address of the first byte."""
        return self._address

    @property
    def size(self) -> int:
        """Requested size in bytes."""
        return self._size

    @property
    def number(self) -> int:
        """Number in the space, from 1 in order of creation; incidents refer to it."""
        return self._number

    @property
    def kind(self) -> ZoneKind:
        """The current kind of its zones. They go when the card runs short of memory (docs/guides/preload.md)."""
        return self._space.kind_of(self._number)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3, one dimension of bytes. The consumer must keep this region alive, and wait for its own work."""
        return {"shape": (self._size,), "typestr": "|u1", "data": (self._address, False), "version": 3}

    def close(self) -> None:
        """Wait for all work of the region's context, and free everything; safe to call twice.

        Raises:
            ZoneCudaError: the driver refused; the next `close`, or that of the space, retries what is left.
        """
        self._space.close_region(self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass
class _Made:
    """What one region holds, and how it is freed: zones, memory, addresses, in this order."""

    context: Context
    layout: ZoneLayout
    start: int = 0
    kind: ZoneKind = ZoneKind.NONE
    armed: int = 0
    """Bytes of managed ranges."""
    slot: int | None = None
    entry: Entry | None = None
    addresses: Undo = field(default_factory=Undo)
    zones: Undo = field(default_factory=Undo)
    memory: Undo = field(default_factory=Undo)


class ZoneSpace:
    """Allocates regions with zones; `close` frees all of them.

    Every region belongs to the CUDA context that is current when it is allocated, and must be closed before that
    context ends. Calls may come from any thread. A forked child has no zones, because CUDA does not work there.
    """

    def __init__(
        self, settings: ZoneSettings | None = None, *, driver: Driver | None = None, uvm: Uvm | None = None
    ) -> None:
        self._settings = settings or ZoneSettings()
        self._driver = driver if driver is not None else CudaDriver()
        self._uvm = uvm if uvm is not None else Uvm()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._made: dict[int, _Made] = {}
        self._withdrawn: dict[int, _Made] = {}
        """Closed regions of which the driver has not freed everything."""
        self._numbers = 0
        self._table = TableWriter()
        self._open = True

    @property
    def armed(self) -> int:
        """Bytes of managed ranges of all regions together."""
        with self._lock:
            return self._armed()

    def allocate(self, size: int, *, front: int | None = None, back: int | None = None) -> ZonedRegion:
        """Allocate ``size`` bytes of device memory with zones around it.

        Args:
            size: bytes.
            front: bytes of the zone before it; None: as in the settings.
            back: bytes of the zone behind it; None: as in the settings.

        Raises:
            LayoutError: the sizes are impossible.
            BudgetError: more bytes would be armed than allowed.
            NoZonesError: this machine supports none of the requested kinds of zones.
            ZoneCudaError: the driver refused (2: out of memory). Nothing of a refused region stays allocated.
        """
        with self._lock:
            self._check_usable()
            context = self._driver.current()
            if not self._driver.has_virtual_memory(context.device):
                raise NoZonesError(f"device {context.device} has no virtual memory management")
            layout = self._plan(context, size, front, back)
            free = self._driver.free_memory()
            allowed = budget.most(free, layout.memory, self._settings.limit)
            self._shed(allowed)
            made = _Made(context, layout)
            try:
                self._reserve(made)
                self._surround(made, free, allowed)
                self._fill(made)
            except BaseException:
                self._numbers += 1
                self._withdrawn[self._numbers] = made
                self._retry_release(self._numbers)
                raise
            return self._enter(made, size)

    def kind_of(self, number: int) -> ZoneKind:
        """Return the current kind of a region's zones; NONE once it is closed."""
        with self._lock:
            made = self._made.get(number)
            return made.kind if made is not None else ZoneKind.NONE

    def close_region(self, number: int) -> None:
        """Close a region: see `ZonedRegion.close`."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            made = self._made.get(number)
        if made is not None:
            # Without the lock, because this may take as long as the program's kernels.
            self._driver.synchronize(made.context)
        with self._lock:
            if self._made.pop(number, None) is not None and made is not None:
                self._table.remove(made.slot)
                self._table.count("freed")
                self._withdrawn[number] = made
            if number in self._withdrawn:
                self._release(number)

    def close(self) -> None:
        """Close all regions and withdraw the zone table; safe to call twice.

        Raises:
            ZoneCudaError, UvmError: the first error; everything else has been closed. Calling again retries.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._open = False
            numbers = [*self._made, *self._withdrawn]
        errors: list[ZoneError] = []
        for number in numbers:
            try:
                self.close_region(number)
            except (ZoneCudaError, UvmError) as error:
                errors.append(error)
        if errors:
            raise errors[0]
        with self._lock:
            self._table.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ZoneError("this is a child of the process that made the space: CUDA is of no use here")
        if not self._open:
            raise ZoneError("the space is closed")

    def _armed(self) -> int:
        return sum(made.armed for made in (*self._made.values(), *self._withdrawn.values()))

    def _plan(self, context: Context, size: int, front: int | None, back: int | None) -> ZoneLayout:
        settings = self._settings
        return zone_layout.plan(
            size,
            settings.front if front is None else front,
            settings.back if back is None else back,
            granularity=self._driver.granularity(context.device),
            alignment=settings.alignment,
            at_end=settings.at_end,
        )

    def _shed(self, allowed: int) -> None:
        """Disarm zones for which the card has too little memory now, and retry what the driver refused to free."""
        for number in list(self._withdrawn):
            self._retry_release(number)
        for number in budget.to_shed(((number, made.armed) for number, made in self._made.items()), allowed):
            made = self._made[number]
            made.zones.run()
            made.armed, made.kind = 0, ZoneKind.NONE
            assert made.entry is not None
            made.entry = msgspec.structs.replace(made.entry, front_armed=False, back_armed=False)
            self._table.change(made.slot, made.entry)
            self._table.count("shed")

    def _reserve(self, made: _Made) -> None:
        length = made.layout.total
        made.start = self._driver.reserve(length, self._driver.granularity(made.context.device))
        made.addresses.push(lambda: self._driver.release_addresses(made.start, length))

    def _surround(self, made: _Made, free: int, allowed: int) -> None:
        """Create the first of the acceptable kinds of zones that this machine supports."""
        wanted = [(start, length) for start, length in _zones(made) if length]
        refused = []
        for kind in self._settings.kinds:
            try:
                if kind is ZoneKind.TRIPWIRE:
                    self._arm(made, wanted, free, allowed)
                elif kind is ZoneKind.SPARSE:
                    self._make_sparse(made, wanted)
            except UvmError as error:
                made.zones.run()
                made.armed = 0
                refused.append(f"{kind}: {error}")
            else:
                made.kind = kind if wanted else ZoneKind.NONE
                return
        raise NoZonesError("; ".join(refused))

    def _arm(self, made: _Made, zones: list[tuple[int, int]], free: int, allowed: int) -> None:
        if not self._driver.has_managed_faults(made.context.device):
            raise UvmError(f"device {made.context.device} has no concurrent managed access")
        if zones:
            budget.check(sum(length for _, length in zones), armed=self._armed(), allowed=allowed, free=free)
        for start, length in zones:
            before = self._uvm.arm(start, length)
            made.zones.push(lambda start=start, length=length, before=before: self._uvm.disarm(start, length, before))  # type: ignore[misc]
            made.armed += length

    def _make_sparse(self, made: _Made, zones: list[tuple[int, int]]) -> None:
        gpu = self._driver.uuid(made.context.device)
        for start, length in zones:
            self._uvm.make_sparse(start, length, gpu)
            made.zones.push(lambda start=start, length=length: self._uvm.end_sparse(start, length))  # type: ignore[misc]

    def _fill(self, made: _Made) -> None:
        """Map real memory in the middle; afterwards the mapping alone holds it."""
        start, length = made.start + made.layout.front, made.layout.memory
        handle = self._driver.create(length, made.context.device)
        held = Undo()
        held.push(lambda: self._driver.release(handle))
        made.memory.push(held.run)
        self._driver.map(start, length, handle, made.context.device)
        made.memory.push(lambda: self._driver.unmap(start, length))
        held.run()

    def _enter(self, made: _Made, size: int) -> ZonedRegion:
        self._numbers += 1
        number = self._numbers
        user = made.start + made.layout.user
        told = made.kind is ZoneKind.TRIPWIRE
        made.entry = Entry(
            number=number % _NUMBERS,
            device=made.context.device,
            start=made.start,
            front=made.layout.front,
            memory=made.layout.memory,
            back=made.layout.back,
            user=user,
            size=size,
            front_armed=told and made.layout.front > 0,
            back_armed=told and made.layout.back > 0,
            slab=False,
        )
        made.slot = self._table.add(made.entry)
        self._table.count("placed")
        self._made[number] = made
        return ZonedRegion(self, number, user, size)

    def _retry_release(self, number: int) -> None:
        try:
            self._release(number)
        except (ZoneCudaError, UvmError):
            # Kept for later: `close` of the space retries it and reports the error.
            return

    def _release(self, number: int) -> None:
        # Zones first: even if the driver refuses to free the rest, nothing stays armed.
        made = self._withdrawn[number]
        made.zones.run()
        made.armed = 0
        made.memory.run()
        made.addresses.run()
        del self._withdrawn[number]


def _zones(made: _Made) -> tuple[tuple[int, int], tuple[int, int]]:
    layout = made.layout
    return (made.start, layout.front), (made.start + layout.front + layout.memory, layout.back)
