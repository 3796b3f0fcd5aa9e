"""What NVML says of one GPU, in the words of evidence. Together with `nvml` the only place that knows NVML.

The functions are those of ``pynvml`` (nvidia-ml-py); what they mean is in the vendor's nvml.h. Constants that an older
library lacks are left out: the event or value is then not asked for.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

from mpsguard.guard.evidence import DeviceHealth, Xid

GPU_IS_LOST: Final = 15
"""NVML_ERROR_GPU_IS_LOST: one has fallen off the bus."""

_NO_INSTANCE: Final = 0xFFFFFFFF
"""GPU and compute instance of an event that names none (no MIG)."""


class NvmlLibrary(Protocol):
    """What is used of the ``pynvml`` module. Handles are opaque; every function raises NVMLError."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...  # noqa: N802, D102
    def nvmlShutdown(self) -> None: ...  # noqa: N802, D102
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802, D102
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...  # noqa: N802, D102
    def nvmlDeviceGetPciInfo(self, handle: Any) -> Any: ...  # noqa: N802, D102
    def nvmlDeviceGetSupportedEventTypes(self, handle: Any) -> int: ...  # noqa: N802, D102
    def nvmlDeviceRegisterEvents(self, handle: Any, types: int, events: Any) -> None: ...  # noqa: N802, D102
    def nvmlEventSetCreate(self) -> Any: ...  # noqa: N802, D102
    def nvmlEventSetWait_v2(self, events: Any, timeout_ms: int) -> Any: ...  # noqa: N802, D102
    def nvmlEventSetFree(self, events: Any) -> None: ...  # noqa: N802, D102
    def nvmlDeviceGetRetiredPages(self, handle: Any, cause: int) -> list[int]: ...  # noqa: N802, D102
    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: Any) -> int: ...  # noqa: N802, D102
    def nvmlDeviceGetRemappedRows(self, handle: Any) -> tuple[int, int, int, int]: ...  # noqa: N802, D102
    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any: ...  # noqa: N802, D102
    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: Any) -> list[Any]: ...  # noqa: N802, D102
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any: ...  # noqa: N802, D102
    def nvmlDeviceGetUUID(self, handle: Any) -> str: ...  # noqa: N802, D102
    def nvmlDeviceGetName(self, handle: Any) -> str: ...  # noqa: N802, D102
    def nvmlDeviceGetFieldValues(self, handle: Any, fields: list[int]) -> Any: ...  # noqa: N802, D102


class EventKind(NamedTuple):
    """An NVML event that tells of a whole GPU."""

    constant: str
    what: str
    fatal: bool


EVENT_KINDS: Final = (
    EventKind("nvmlEventTypeSingleBitEccError", "ecc_single_bit", False),
    EventKind("nvmlEventTypeDoubleBitEccError", "ecc_double_bit", True),
    EventKind("nvmlEventTypeSingleBitEccErrorStorm", "ecc_single_bit_storm", False),
    EventKind("nvmlEventTypeDramRetirementEvent", "dram_retired", False),
    EventKind("nvmlEventTypeDramRetirementFailure", "dram_retirement_failed", True),
    EventKind("nvmlEventTypeNonFatalPoisonError", "poison_contained", False),
    EventKind("nvmlEventTypeFatalPoisonError", "poison_uncontained", True),
    EventKind("nvmlEventTypeGpuUnavailableError", "gpu_unavailable", True),
    EventKind("nvmlEventTypeGpuRecoveryAction", "recovery_action_changed", False),
)
_XID: Final = "nvmlEventTypeXidCriticalError"

_DEVICE_XIDS: Final = frozenset({48, 63, 64, 74, 79, 92, 94, 95, 140, *range(144, 151), 154, 156, 171, 172})
"""Xids that may change what `health` reads: ECC, retirement and remapping, bus, recovery action. After another one, a
client's fault, NVML is left alone: its calls queue behind the recovery."""

_RECOVERY_FATAL: Final = frozenset({1, 2, 6, 7})
"""Recovery actions without which the GPU is of no use: GPU and bus reset, node and system reboot. The others (none,
drain peer-to-peer, drain and reset, recover an IMEX domain) let running work end."""


class Reading(NamedTuple):
    """One value of a GPU's health."""

    what: str
    value: int
    fatal: bool


class GpuIdentity(NamedTuple):
    """What tells a GPU from others; "" for what NVML does not say."""

    address: str
    """PCI address, as in `pci_address`."""
    uuid: str
    model: str


class GpuReading(NamedTuple):
    """A GPU and its memory in bytes, of all processes together; None where NVML does not say."""

    identity: GpuIdentity
    used: int | None
    total: int | None


class MemoryReading(NamedTuple):
    """The GPU memory of MPS clients at one time."""

    at: float
    """CLOCK_MONOTONIC seconds, before the first GPU was asked."""
    gpus: tuple[GpuIdentity, ...]
    """The GPUs that answered."""
    every_gpu: tuple[GpuIdentity, ...]
    """All GPUs that are watched, in NVML's order: by PCI address."""
    sizes: Mapping[tuple[int, str], int]
    """Bytes by pid and PCI address."""


class Device:
    """One GPU as NVML knows it; its PCI address is read once, for a GPU that is lost cannot tell any more."""

    def __init__(self, library: NvmlLibrary, handle: Any) -> None:
        """NVMLError if the GPU does not say where it is."""
        self._library = library
        self._handle = handle
        self.address = pci_address(library.nvmlDeviceGetPciInfo(handle))
        self.identity = GpuIdentity(self.address, self._text("nvmlDeviceGetUUID"), self._text("nvmlDeviceGetName"))
        self.known: dict[str, int] = {}
        """The last reading; also that of the same GPU before NVML was opened anew."""

    def register(self, events: Any) -> str:
        """Ask for every event that library and GPU know, or else for Xids alone; why, if so.

        NVMLError if these are refused too: then there is nothing to wait for. A refused request leaves the set usable.
        """
        library = self._library
        xids = getattr(library, _XID)
        wanted = xids
        for kind in EVENT_KINDS:
            wanted |= getattr(library, kind.constant, 0)
        try:
            wanted &= library.nvmlDeviceGetSupportedEventTypes(self._handle)
            library.nvmlDeviceRegisterEvents(self._handle, wanted | xids, events)
        except library.NVMLError as error:
            library.nvmlDeviceRegisterEvents(self._handle, xids, events)
            return f"Xids only: {error}"
        return ""

    def idle(self) -> bool:
        """Whether no kernel ran in the last sample period, a second at most (nvml.h); False if it cannot be known."""
        try:
            return int(self._library.nvmlDeviceGetUtilizationRates(self._handle).gpu) == 0
        except (self._library.NVMLError, AttributeError):
            return False

    def is_lost(self) -> bool:
        """Whether NVML says of this GPU that it is lost."""
        try:
            self._library.nvmlDeviceGetUtilizationRates(self._handle)
        except (self._library.NVMLError, AttributeError) as error:
            return error_code(error) == GPU_IS_LOST
        return False

    def memory(self) -> dict[int, int] | None:
        """Bytes of this GPU by pid of an MPS client; None if it cannot be known."""
        try:
            clients = self._library.nvmlDeviceGetMPSComputeRunningProcesses(self._handle)
        except (self._library.NVMLError, AttributeError):
            return None
        return {client.pid: client.usedGpuMemory for client in clients if client.usedGpuMemory is not None}

    def reading(self) -> GpuReading:
        """The GPU with its memory."""
        try:
            memory = self._library.nvmlDeviceGetMemoryInfo(self._handle)
        except (self._library.NVMLError, AttributeError):
            return GpuReading(self.identity, None, None)
        return GpuReading(self.identity, int(memory.used), int(memory.total))

    def _text(self, question: str) -> str:
        try:
            answer = getattr(self._library, question)(self._handle)
        except (self._library.NVMLError, AttributeError):
            return ""
        # Older releases of the library answer in bytes.
        return answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)

    def news(self) -> list[DeviceHealth]:
        """What differs from the last reading; the first time, what is not zero."""
        readings = list(self._health())
        changed = [reading for reading in readings if self.known.get(reading.what, 0) != reading.value]
        self.known.update({reading.what: reading.value for reading in readings})
        return [DeviceHealth(*reading) for reading in changed]

    def _health(self) -> Iterator[Reading]:
        # Each GPU has some of these: pages are retired before Ampere, rows remapped since; MIG instances have neither.
        for read in (self._retired, self._retirement_pending, self._remapped, self._recovery_action):
            yield from self._if_supported(read)

    def _if_supported(self, read: Callable[[], list[Reading]]) -> list[Reading]:
        try:
            return read()
        except (self._library.NVMLError, AttributeError):
            # AttributeError: the Python library is older than the question.
            return []

    def _retired(self) -> list[Reading]:
        library = self._library
        causes = {
            "retired_pages_single_bit": "NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS",
            "retired_pages_double_bit": "NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR",
        }
        return [
            Reading(what, len(library.nvmlDeviceGetRetiredPages(self._handle, getattr(library, cause))), False)
            for what, cause in causes.items()
        ]

    def _retirement_pending(self) -> list[Reading]:
        pending = self._library.nvmlDeviceGetRetiredPagesPendingStatus(self._handle)
        return [Reading("retired_pages_pending", pending, False)]

    def _remapped(self) -> list[Reading]:
        correctable, uncorrectable, pending, failed = self._library.nvmlDeviceGetRemappedRows(self._handle)
        return [
            Reading("remapped_rows_correctable", correctable, False),
            Reading("remapped_rows_uncorrectable", uncorrectable, False),
            Reading("row_remap_pending", pending, False),
            Reading("row_remap_failed", failed, bool(failed)),
        ]

    def _recovery_action(self) -> list[Reading]:
        library: Any = self._library
        [field] = library.nvmlDeviceGetFieldValues(self._handle, [library.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        if field.nvmlReturn != 0:
            return []
        action = int(field.value.uiVal)
        return [Reading("recovery_action", action, action in _RECOVERY_FATAL)]


def error_code(error: Exception) -> int | None:
    """Return the NVML_ERROR number of an NVMLError."""
    return getattr(error, "value", None)


def pci_address(info: Any) -> str:
    """Domain, bus and device as the driver's Xid lines have them: ``0000:18:00``."""
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}"


def observation(library: NvmlLibrary, event: Any) -> Xid | DeviceHealth:
    """An event in the words of evidence. Only Xids come with a value; it is 999 for one that NVML does not know."""
    if event.eventType == getattr(library, _XID):
        text = ""
        if event.gpuInstanceId != _NO_INSTANCE:
            text = f"GPU instance {event.gpuInstanceId}, compute instance {event.computeInstanceId}"
        return Xid(number=int(event.eventData), pid=None, text=text)
    for kind in EVENT_KINDS:
        if event.eventType == getattr(library, kind.constant, 0):
            return DeviceHealth(kind.what, int(event.eventData), kind.fatal)
    return DeviceHealth(f"event_{event.eventType:#x}", int(event.eventData), False)


def is_of_device(seen: Xid | DeviceHealth) -> bool:
    """Whether the GPU's health may have changed with this event."""
    return isinstance(seen, DeviceHealth) or seen.number in _DEVICE_XIDS
