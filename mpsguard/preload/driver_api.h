// The part of the CUDA driver API that the preload calls or stands in for, declared here so that it builds without CUDA.
//
// Names, numbers and layouts are those of the CUDA driver API reference (sections Memory Management, Virtual Memory
// Management, Unified Addressing, Driver Entry Point Access); tests/unit/preload/test_driver_api.py compares them with
// the toolkit's own header where there is one. Pointers to device memory are 64 bits: the API before version 3.2, with
// 32-bit addresses, is never touched.
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef int mg_result;
typedef unsigned long long mg_address;
typedef unsigned long long mg_handle;  // of physical memory
typedef int mg_device;
typedef void *mg_context;
typedef void *mg_stream;
typedef void *mg_event;
typedef void *mg_pool;

enum {
    MG_SUCCESS = 0,
    MG_INVALID_VALUE = 1,
    MG_OUT_OF_MEMORY = 2,
    MG_NOT_INITIALIZED = 3,
    MG_INVALID_CONTEXT = 201,
    MG_MAP_FAILED = 205,
    MG_INVALID_HANDLE = 400,
    MG_NOT_SUPPORTED = 801,
};

// Handles that stand for a stream: the default one that waits for others, and each thread's own.
#define MG_STREAM_LEGACY ((mg_stream)1)
#define MG_STREAM_PER_THREAD ((mg_stream)2)

enum { MG_CAPTURE_NONE = 0, MG_CAPTURE_RELAXED = 2, MG_EVENT_DISABLE_TIMING = 2 };

enum {
    MG_DEVICE_MAX_PITCH = 11,
    MG_DEVICE_UNIFIED_ADDRESSING = 41,
    MG_DEVICE_CONCURRENT_MANAGED_ACCESS = 89,
    MG_DEVICE_VIRTUAL_MEMORY_MANAGEMENT = 102,
    MG_DEVICE_RDMA_WITH_VIRTUAL_MEMORY = 110,
};

enum {
    MG_POINTER_CONTEXT = 1,
    MG_POINTER_LEGACY_IPC = 10,
    MG_POINTER_RANGE_START = 11,
    MG_POINTER_RANGE_SIZE = 12,
    MG_POINTER_POOL = 17,
};

enum {
    MG_POOL_RELEASE_THRESHOLD = 4,
    MG_POOL_RESERVED = 5,
    MG_POOL_RESERVED_HIGH = 6,
    MG_POOL_USED = 7,
    MG_POOL_USED_HIGH = 8,
};

enum { MG_MEMORY_PINNED = 1, MG_LOCATION_DEVICE = 1, MG_ACCESS_READ_WRITE = 3, MG_GRANULARITY_MINIMUM = 0 };
enum { MG_HANDLE_POSIX = 1 };

// cuGetProcAddress finds the variants for the per-thread default stream if asked so.
enum { MG_LEGACY_STREAM = 1, MG_PER_THREAD_STREAM = 2 };

typedef struct {
    int type;
    int id;
} mg_location;

typedef struct {
    int type;
    int requested_handle_types;
    mg_location location;
    void *win32_metadata;
    struct {
        unsigned char compression;
        unsigned char rdma_capable;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
} mg_allocation_properties;

typedef struct {
    mg_location location;
    int flags;
} mg_access;

// CUipcMemHandle.
typedef struct {
    char bytes[64];
} mg_ipc_handle;

typedef struct {
    int allocation_type;
    int handle_types;
    mg_location location;
    void *win32_attributes;
    size_t most;           // since CUDA 12.2; reserved, and so 0, before
    unsigned short usage;  // since CUDA 12.8, likewise
    unsigned char reserved[54];
} mg_pool_properties;

// X(name, parameters): what the preload cannot do without, and every driver since CUDA 11.3 has.
#define MG_REQUIRED_FUNCTIONS(X)                                                                                     \
    X(cuMemAlloc_v2, (mg_address *, size_t))                                                                         \
    X(cuMemFree_v2, (mg_address))                                                                                    \
    X(cuMemAllocPitch_v2, (mg_address *, size_t *, size_t, size_t, unsigned))                                        \
    X(cuMemGetAddressRange_v2, (mg_address *, size_t *, mg_address))                                                 \
    X(cuMemGetInfo_v2, (size_t *, size_t *))                                                                         \
    X(cuMemAddressReserve, (mg_address *, size_t, size_t, mg_address, unsigned long long))                           \
    X(cuMemAddressFree, (mg_address, size_t))                                                                        \
    X(cuMemCreate, (mg_handle *, size_t, const mg_allocation_properties *, unsigned long long))                      \
    X(cuMemRelease, (mg_handle))                                                                                     \
    X(cuMemMap, (mg_address, size_t, size_t, mg_handle, unsigned long long))                                         \
    X(cuMemUnmap, (mg_address, size_t))                                                                              \
    X(cuMemSetAccess, (mg_address, size_t, const mg_access *, size_t))                                               \
    X(cuMemGetAllocationGranularity, (size_t *, const mg_allocation_properties *, int))                              \
    X(cuMemRetainAllocationHandle, (mg_handle *, void *))                                                            \
    X(cuPointerGetAttribute, (void *, int, mg_address))                                                              \
    X(cuPointerGetAttributes, (unsigned, int *, void **, mg_address))                                                \
    X(cuIpcGetMemHandle, (mg_ipc_handle *, mg_address))                                                                       \
    X(cuCtxGetCurrent, (mg_context *))                                                                               \
    X(cuCtxGetDevice, (mg_device *))                                                                                 \
    X(cuCtxPushCurrent_v2, (mg_context))                                                                             \
    X(cuCtxPopCurrent_v2, (mg_context *))                                                                            \
    X(cuCtxSynchronize, (void))                                                                                      \
    X(cuCtxDestroy_v2, (mg_context))                                                                                 \
    X(cuDeviceGetCount, (int *))                                                                                     \
    X(cuDeviceGetAttribute, (int *, int, mg_device))                                                                 \
    X(cuDevicePrimaryCtxRetain, (mg_context *, mg_device))                                                           \
    X(cuDevicePrimaryCtxGetState, (mg_device, unsigned *, int *))                                                    \
    X(cuDevicePrimaryCtxRelease_v2, (mg_device))                                                                     \
    X(cuDevicePrimaryCtxReset_v2, (mg_device))                                                                       \
    X(cuGetProcAddress, (const char *, void **, int, uint64_t))

// What is only passed on where a driver has it.
#define MG_OPTIONAL_FUNCTIONS(X)                                                                                     \
    X(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *))                                            \
    X(cuMemFreeAsync, (mg_address, mg_stream))                                                                       \
    X(cuMemFreeAsync_ptsz, (mg_address, mg_stream))                                                                  \
    X(cuMemAllocAsync, (mg_address *, size_t, mg_stream))                                                            \
    X(cuMemAllocAsync_ptsz, (mg_address *, size_t, mg_stream))                                                       \
    X(cuMemAllocFromPoolAsync, (mg_address *, size_t, mg_pool, mg_stream))                                           \
    X(cuMemAllocFromPoolAsync_ptsz, (mg_address *, size_t, mg_pool, mg_stream))                                      \
    X(cuMemPoolCreate, (mg_pool *, const mg_pool_properties *))                                                      \
    X(cuMemPoolDestroy, (mg_pool))                                                                                   \
    X(cuMemPoolSetAccess, (mg_pool, const mg_access *, size_t))                                                      \
    X(cuMemPoolSetAttribute, (mg_pool, int, void *))                                                                 \
    X(cuMemPoolGetAttribute, (mg_pool, int, void *))                                                                 \
    X(cuMemPoolTrimTo, (mg_pool, size_t))                                                                            \
    X(cuDeviceGetUuid_v2, (void *, mg_device))                                                                       \
    X(cuDeviceGetMemPool, (mg_pool *, mg_device))                                                                    \
    X(cuDeviceGetDefaultMemPool, (mg_pool *, mg_device))                                                             \
    X(cuStreamGetId, (mg_stream, unsigned long long *))                                                              \
    X(cuStreamGetCtx, (mg_stream, mg_context *))                                                                     \
    X(cuStreamIsCapturing, (mg_stream, int *))                                                                       \
    X(cuStreamSynchronize, (mg_stream))                                                                              \
    X(cuStreamSynchronize_ptsz, (mg_stream))                                                                         \
    X(cuThreadExchangeStreamCaptureMode, (int *))                                                                    \
    X(cuEventCreate, (mg_event *, unsigned))                                                                         \
    X(cuEventRecord, (mg_event, mg_stream))                                                                          \
    X(cuEventQuery, (mg_event))                                                                                      \
    X(cuEventSynchronize, (mg_event))                                                                                \
    X(cuCtxSynchronize_v2, (mg_context))                                                                             \
    X(cuStreamBeginCapture, (mg_stream))                                                                             \
    X(cuStreamBeginCapture_ptsz, (mg_stream))                                                                        \
    X(cuStreamBeginCapture_v2, (mg_stream, int))                                                                     \
    X(cuStreamBeginCapture_v2_ptsz, (mg_stream, int))                                                                \
    X(cuStreamBeginCaptureToGraph, (mg_stream, void *, const void *, const void *, size_t, int))                     \
    X(cuStreamBeginCaptureToGraph_ptsz, (mg_stream, void *, const void *, const void *, size_t, int))                \
    X(cuStreamEndCapture, (mg_stream, void **))                                                                      \
    X(cuStreamEndCapture_ptsz, (mg_stream, void **))                                                                 \
    X(cuStreamDestroy, (mg_stream))                                                                                  \
    X(cuStreamDestroy_v2, (mg_stream))                                                                               \
    X(cuCtxDestroy, (mg_context))                                                                                    \
    X(cuDevicePrimaryCtxReset, (mg_device))                                                                          \
    X(cuDevicePrimaryCtxRelease, (mg_device))                                                                        \
    X(cuGreenCtxCreate, (void **, void *, mg_device, unsigned))                                                      \
    X(cuIpcOpenMemHandle, (mg_address *, mg_ipc_handle, unsigned))                                                   \
    X(cuIpcOpenMemHandle_v2, (mg_address *, mg_ipc_handle, unsigned))                                                \
    X(cuIpcCloseMemHandle, (mg_address))                                                                             \
    X(cuMemExportToShareableHandle, (void *, mg_handle, int, unsigned long long))                                    \
    X(cuMemImportFromShareableHandle, (mg_handle *, void *, int))

// The driver's own functions, found once and never through a hook.
typedef struct {
#define MG_MEMBER(name, parameters) mg_result(*name) parameters;
    MG_REQUIRED_FUNCTIONS(MG_MEMBER) MG_OPTIONAL_FUNCTIONS(MG_MEMBER)
#undef MG_MEMBER
} mg_driver;
