"""What the preload declares of the driver API, against the toolkit's own header."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mpsguard.preload import build

REPOSITORY = Path(__file__).resolve().parents[3]

CHECKS = """
#include <cuda.h>
#include <stddef.h>
// The toolkit renames some functions to their newest version.
#undef cuGetProcAddress
#undef cuStreamBeginCapture
#undef cuStreamDestroy
#undef cuCtxDestroy
#undef cuDevicePrimaryCtxReset
#undef cuDevicePrimaryCtxRelease
#undef cuIpcOpenMemHandle
#include "driver_api.h"

#define SAME(one, other) _Static_assert((one) == (other), #one " is " #other)
SAME(sizeof(mg_address), sizeof(CUdeviceptr));
SAME(sizeof(mg_handle), sizeof(CUmemGenericAllocationHandle));
SAME(sizeof(mg_device), sizeof(CUdevice));
SAME(sizeof(mg_allocation_properties), sizeof(CUmemAllocationProp));
SAME(offsetof(mg_allocation_properties, requested_handle_types), offsetof(CUmemAllocationProp, requestedHandleTypes));
SAME(offsetof(mg_allocation_properties, location), offsetof(CUmemAllocationProp, location));
SAME(offsetof(mg_allocation_properties, flags), offsetof(CUmemAllocationProp, allocFlags));
SAME(offsetof(mg_allocation_properties, flags.rdma_capable),
     offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));
SAME(sizeof(mg_access), sizeof(CUmemAccessDesc));
SAME(offsetof(mg_access, flags), offsetof(CUmemAccessDesc, flags));
SAME(offsetof(mg_location, id), offsetof(CUmemLocation, id));
SAME(MG_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(MG_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(MG_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME(MG_DEVICE_MAX_PITCH, CU_DEVICE_ATTRIBUTE_MAX_PITCH);
SAME(MG_DEVICE_UNIFIED_ADDRESSING, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
SAME(MG_DEVICE_CONCURRENT_MANAGED_ACCESS, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
SAME(MG_DEVICE_VIRTUAL_MEMORY_MANAGEMENT, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME(MG_DEVICE_RDMA_WITH_VIRTUAL_MEMORY, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
SAME(MG_POINTER_CONTEXT, CU_POINTER_ATTRIBUTE_CONTEXT);
SAME(MG_POINTER_RANGE_START, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
SAME(MG_POINTER_RANGE_SIZE, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
SAME(MG_POINTER_LEGACY_IPC, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
SAME(sizeof(mg_ipc_handle), sizeof(CUipcMemHandle));
SAME(MG_HANDLE_POSIX, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME(MG_MAP_FAILED, CUDA_ERROR_MAP_FAILED);
SAME(MG_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
SAME(MG_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME(MG_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(MG_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME(MG_MEMORY_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(MG_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
SAME(MG_ACCESS_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME(MG_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME(MG_LEGACY_STREAM, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
SAME(MG_PER_THREAD_STREAM, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
SAME(901, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
SAME(sizeof(mg_pool_properties), sizeof(CUmemPoolProps));
SAME(offsetof(mg_pool_properties, handle_types), offsetof(CUmemPoolProps, handleTypes));
SAME(offsetof(mg_pool_properties, location), offsetof(CUmemPoolProps, location));
SAME(offsetof(mg_pool_properties, most), offsetof(CUmemPoolProps, maxSize));
SAME(offsetof(mg_pool_properties, usage), offsetof(CUmemPoolProps, usage));
SAME(MG_POOL_RELEASE_THRESHOLD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
SAME(MG_POOL_RESERVED, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
SAME(MG_POOL_RESERVED_HIGH, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
SAME(MG_POOL_USED, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
SAME(MG_POOL_USED_HIGH, CU_MEMPOOL_ATTR_USED_MEM_HIGH);
SAME(MG_POINTER_POOL, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
SAME((unsigned long)MG_STREAM_LEGACY, (unsigned long)CU_STREAM_LEGACY);
SAME((unsigned long)MG_STREAM_PER_THREAD, (unsigned long)CU_STREAM_PER_THREAD);
SAME(MG_CAPTURE_NONE, CU_STREAM_CAPTURE_STATUS_NONE);
SAME(MG_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(MG_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
"""


def include_directory() -> Path:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed: there is no header to compare with")
    asked = subprocess.run([nvcc, "--dryrun", "x.cu"], capture_output=True, text=True, timeout=60, check=False)
    (top,) = re.findall(r"^#\$ TOP=(.*)$", asked.stderr, re.MULTILINE)
    found = Path(top).resolve() / "include"
    if not (found / "cuda.h").exists() or shutil.which("gcc") is None:
        pytest.skip(f"no cuda.h in {found}, or no gcc")
    return found


def test_numbers_and_layouts_are_the_toolkits(tmp_path: Path) -> None:
    source = tmp_path / "checks.c"
    source.write_text(CHECKS, encoding="ascii")
    command = [
        "gcc",
        "-std=c11",
        "-fsyntax-only",
        "-I",
        str(include_directory()),
        "-I",
        str(build.SOURCES),
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_first_versions_are_the_toolkits() -> None:
    """A hook must not be given out for an older function of the same name."""
    text = (include_directory() / "cudaTypedefs.h").read_text(encoding="ascii", errors="replace")
    cuda = (include_directory() / "cuda.h").read_text(encoding="ascii", errors="replace")
    (newest,) = re.findall(r"#define CUDA_VERSION (\d+)", cuda)
    hooks = (build.SOURCES / "binding" / "hook_list.h").read_text(encoding="ascii")
    entries = re.findall(r'(\w+), "(\w+)", (\d+), ([01])\)', hooks)
    assert len(entries) > 40
    for name, symbol, since, per_thread in entries:
        if int(since) > int(newest):
            continue
        suffix = "_ptsz" if per_thread == "1" else ""
        assert re.search(rf"PFN_{symbol}_v{since}{suffix}\)", text), (name, symbol, since)


def test_the_second_drivers_table_is_made_of_the_header(tmp_path: Path) -> None:
    committed = build.SOURCES / "second" / "functions.h"
    made = tmp_path / "functions.h"
    header = include_directory() / "cuda.h"
    command = [str(REPOSITORY / "scripts" / "generate-driver-functions"), str(header), str(made)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    # A later toolkit has more functions, and an earlier one fewer; those that both have must agree.
    ours, theirs = (
        dict(re.findall(r"^(DRIVER_FUNCTION\(\w+), (.*)$", path.read_text(), re.MULTILINE))
        for path in (committed, made)
    )
    assert {name: ours[name] for name in ours.keys() & theirs.keys()} == {
        name: theirs[name] for name in ours.keys() & theirs.keys()
    }


def test_no_function_of_the_table_is_unknown() -> None:
    assert "REASON_unknown" not in (build.SOURCES / "second" / "functions.h").read_text()
