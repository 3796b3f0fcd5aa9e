# ruff: noqa: ARG002, N802, N815 names and arguments are those of the vendor's module
"""A stand-in for the vendor's module ``pynvml`` and the GPUs behind it."""

import ctypes
import queue
import threading
from types import SimpleNamespace
from typing import Any

XID, DOUBLE_BIT, RECOVERY_ACTION, POISON = 0x8, 0x2, 0x8000, 0x2000
TIMEOUT, NOT_SUPPORTED, UNKNOWN, LOST = 10, 3, 999, 15
NO_MIG = 0xFFFFFFFF


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class Vendor:
    """Stands in for the module ``pynvml`` on a machine with GPUs: same names, results and errors."""

    nvmlEventTypeXidCriticalError = XID
    nvmlEventTypeDoubleBitEccError = DOUBLE_BIT
    nvmlEventTypeFatalPoisonError = POISON
    nvmlEventTypeGpuRecoveryAction = RECOVERY_ACTION
    NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS = 0
    NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR = 1
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
    NVMLError: type[Exception] = NVMLError

    def __init__(self, gpus: int = 1) -> None:
        self._memory = (ctypes.c_int * gpus)()
        self.fails: dict[str, int] = {}
        self.called: list[str] = []
        self.registered: list[int] = []
        self.events: queue.SimpleQueue[SimpleNamespace | NVMLError] = queue.SimpleQueue()
        self.threads: set[str] = set()
        self.open = 0
        self.sets = 0
        self.rows = (0, 0, 0, 0)
        self.action = 0
        self.utilization = 0
        self.memory: dict[int, int | None] = {}
        self.model = "Stand-in"

    def _call(self, name: str) -> None:
        self.called.append(name)
        self.threads.add(threading.current_thread().name)
        if name in self.fails:
            raise NVMLError(self.fails[name])

    def handle(self, index: int) -> Any:
        # A new pointer object each time, as ctypes makes them.
        return ctypes.pointer(ctypes.c_int.from_buffer(self._memory, index * ctypes.sizeof(ctypes.c_int)))

    def happen(self, kind: int, data: int = 0, gpu: int = 0, instance: int = NO_MIG) -> None:
        event = {"device": self.handle(gpu), "eventType": kind, "eventData": data}
        self.events.put(SimpleNamespace(**event, gpuInstanceId=instance, computeInstanceId=instance))

    def nvmlInit(self) -> None:
        self._call("nvmlInit")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1
        self._call("nvmlShutdown")

    def nvmlDeviceGetCount(self) -> int:
        self._call("nvmlDeviceGetCount")
        return len(self._memory)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        self._call("nvmlDeviceGetHandleByIndex")
        return self.handle(index)

    def nvmlDeviceGetPciInfo(self, handle: Any) -> Any:
        self._call("nvmlDeviceGetPciInfo")
        index = (ctypes.addressof(handle.contents) - ctypes.addressof(self._memory)) // ctypes.sizeof(ctypes.c_int)
        return SimpleNamespace(domain=0, bus=0x18 + index, device=0)

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        self._call("nvmlDeviceGetUUID")
        return f"GPU-{self.nvmlDeviceGetPciInfo(handle).bus:08x}-0000-4000-8000-000000000000"

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        self._call("nvmlDeviceGetMemoryInfo")
        return SimpleNamespace(used=sum(size or 0 for size in self.memory.values()), total=80 << 30)

    def nvmlDeviceGetName(self, handle: Any) -> str:
        self._call("nvmlDeviceGetName")
        return self.model

    def nvmlDeviceGetSupportedEventTypes(self, handle: Any) -> int:
        self._call("nvmlDeviceGetSupportedEventTypes")
        return XID | DOUBLE_BIT | RECOVERY_ACTION | 0x10

    def nvmlDeviceRegisterEvents(self, handle: Any, types: int, events: Any) -> None:
        self._call("nvmlDeviceRegisterEvents")
        self.registered.append(types)

    def nvmlEventSetCreate(self) -> Any:
        self._call("nvmlEventSetCreate")
        self.sets += 1
        return object()

    def nvmlEventSetWait_v2(self, events: Any, timeout_ms: int) -> Any:
        self._call("nvmlEventSetWait_v2")
        try:
            event = self.events.get(timeout=timeout_ms / 1000)
        except queue.Empty:
            raise NVMLError(TIMEOUT) from None
        if isinstance(event, NVMLError):
            raise event
        return event

    def nvmlEventSetFree(self, events: Any) -> None:
        self.sets -= 1
        self._call("nvmlEventSetFree")

    def nvmlDeviceGetRetiredPages(self, handle: Any, cause: int) -> list[int]:
        self._call("nvmlDeviceGetRetiredPages")
        return []

    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: Any) -> int:
        self._call("nvmlDeviceGetRetiredPagesPendingStatus")
        return 0

    def nvmlDeviceGetRemappedRows(self, handle: Any) -> tuple[int, int, int, int]:
        self._call("nvmlDeviceGetRemappedRows")
        return self.rows

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        self._call("nvmlDeviceGetUtilizationRates")
        return SimpleNamespace(gpu=self.utilization, memory=0)

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: Any) -> list[Any]:
        self._call("nvmlDeviceGetMPSComputeRunningProcesses")
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self.memory.items()]

    def nvmlDeviceGetFieldValues(self, handle: Any, fields: list[int]) -> Any:
        self._call("nvmlDeviceGetFieldValues")
        assert fields == [230]
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=self.action))]
