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
    MG_NOT_READY = 600,
    MG_ILLEGAL_ADDRESS = 700,
    MG_NOT_SUPPORTED = 801,
};

// Handles that stand for a stream: the default one that waits for others, and each thread's own.
#define MG_STREAM_LEGACY ((mg_stream)1)
#define MG_STREAM_PER_THREAD ((mg_stream)2)

enum { MG_CAPTURE_NONE = 0, MG_CAPTURE_GLOBAL = 0, MG_CAPTURE_RELAXED = 2, MG_EVENT_DISABLE_TIMING = 2 };

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

// X(member of mg_driver, name, parameters): what the preload cannot do without, and every driver since CUDA 11.3 has.
#define MG_REQUIRED_FUNCTIONS(X)                                                                                        \
    X(mem_alloc_v2, cuMemAlloc_v2, (mg_address *, size_t))                                                              \
    X(mem_free_v2, cuMemFree_v2, (mg_address))                                                                          \
    X(mem_alloc_pitch_v2, cuMemAllocPitch_v2, (mg_address *, size_t *, size_t, size_t, unsigned))                       \
    X(mem_get_address_range_v2, cuMemGetAddressRange_v2, (mg_address *, size_t *, mg_address))                          \
    X(mem_get_info_v2, cuMemGetInfo_v2, (size_t *, size_t *))                                                           \
    X(mem_address_reserve, cuMemAddressReserve, (mg_address *, size_t, size_t, mg_address, unsigned long long))         \
    X(mem_address_free, cuMemAddressFree, (mg_address, size_t))                                                         \
    X(mem_create, cuMemCreate, (mg_handle *, size_t, const mg_allocation_properties *, unsigned long long))             \
    X(mem_release, cuMemRelease, (mg_handle))                                                                           \
    X(mem_map, cuMemMap, (mg_address, size_t, size_t, mg_handle, unsigned long long))                                   \
    X(mem_unmap, cuMemUnmap, (mg_address, size_t))                                                                      \
    X(mem_set_access, cuMemSetAccess, (mg_address, size_t, const mg_access *, size_t))                                  \
    X(mem_get_allocation_granularity, cuMemGetAllocationGranularity, (size_t *, const mg_allocation_properties *, int)) \
    X(mem_retain_allocation_handle, cuMemRetainAllocationHandle, (mg_handle *, void *))                                 \
    X(pointer_get_attribute, cuPointerGetAttribute, (void *, int, mg_address))                                          \
    X(pointer_get_attributes, cuPointerGetAttributes, (unsigned, int *, void **, mg_address))                           \
    X(ipc_get_mem_handle, cuIpcGetMemHandle, (mg_ipc_handle *, mg_address))                                             \
    X(ctx_get_current, cuCtxGetCurrent, (mg_context *))                                                                 \
    X(ctx_get_device, cuCtxGetDevice, (mg_device *))                                                                    \
    X(ctx_push_current_v2, cuCtxPushCurrent_v2, (mg_context))                                                           \
    X(ctx_pop_current_v2, cuCtxPopCurrent_v2, (mg_context *))                                                           \
    X(ctx_synchronize, cuCtxSynchronize, (void))                                                                        \
    X(ctx_destroy_v2, cuCtxDestroy_v2, (mg_context))                                                                    \
    X(device_get_count, cuDeviceGetCount, (int *))                                                                      \
    X(device_get_attribute, cuDeviceGetAttribute, (int *, int, mg_device))                                              \
    X(device_primary_ctx_retain, cuDevicePrimaryCtxRetain, (mg_context *, mg_device))                                   \
    X(device_primary_ctx_get_state, cuDevicePrimaryCtxGetState, (mg_device, unsigned *, int *))                         \
    X(device_primary_ctx_release_v2, cuDevicePrimaryCtxRelease_v2, (mg_device))                                         \
    X(device_primary_ctx_reset_v2, cuDevicePrimaryCtxReset_v2, (mg_device))                                             \
    X(get_proc_address, cuGetProcAddress, (const char *, void **, int, uint64_t))

// What is only passed on where a driver has it.
#define MG_OPTIONAL_FUNCTIONS(X)                                                                                  \
    X(get_proc_address_v2, cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *))                    \
    X(mem_free_async, cuMemFreeAsync, (mg_address, mg_stream))                                                    \
    X(mem_free_async_ptsz, cuMemFreeAsync_ptsz, (mg_address, mg_stream))                                          \
    X(mem_alloc_async, cuMemAllocAsync, (mg_address *, size_t, mg_stream))                                        \
    X(mem_alloc_async_ptsz, cuMemAllocAsync_ptsz, (mg_address *, size_t, mg_stream))                              \
    X(mem_alloc_from_pool_async, cuMemAllocFromPoolAsync, (mg_address *, size_t, mg_pool, mg_stream))             \
    X(mem_alloc_from_pool_async_ptsz, cuMemAllocFromPoolAsync_ptsz, (mg_address *, size_t, mg_pool, mg_stream))   \
    X(mem_pool_create, cuMemPoolCreate, (mg_pool *, const mg_pool_properties *))                                  \
    X(mem_pool_destroy, cuMemPoolDestroy, (mg_pool))                                                              \
    X(mem_pool_set_access, cuMemPoolSetAccess, (mg_pool, const mg_access *, size_t))                              \
    X(mem_pool_set_attribute, cuMemPoolSetAttribute, (mg_pool, int, void *))                                      \
    X(mem_pool_get_attribute, cuMemPoolGetAttribute, (mg_pool, int, void *))                                      \
    X(mem_pool_trim_to, cuMemPoolTrimTo, (mg_pool, size_t))                                                       \
    X(device_get_uuid_v2, cuDeviceGetUuid_v2, (void *, mg_device))                                                \
    X(device_get_mem_pool, cuDeviceGetMemPool, (mg_pool *, mg_device))                                            \
    X(device_get_default_mem_pool, cuDeviceGetDefaultMemPool, (mg_pool *, mg_device))                             \
    X(stream_get_id, cuStreamGetId, (mg_stream, unsigned long long *))                                            \
    X(stream_get_ctx, cuStreamGetCtx, (mg_stream, mg_context *))                                                  \
    X(stream_is_capturing, cuStreamIsCapturing, (mg_stream, int *))                                               \
    X(stream_synchronize, cuStreamSynchronize, (mg_stream))                                                       \
    X(stream_synchronize_ptsz, cuStreamSynchronize_ptsz, (mg_stream))                                             \
    X(thread_exchange_stream_capture_mode, cuThreadExchangeStreamCaptureMode, (int *))                            \
    X(event_create, cuEventCreate, (mg_event *, unsigned))                                                        \
    X(event_record, cuEventRecord, (mg_event, mg_stream))                                                         \
    X(event_query, cuEventQuery, (mg_event))                                                                      \
    X(event_synchronize, cuEventSynchronize, (mg_event))                                                          \
    X(ctx_synchronize_v2, cuCtxSynchronize_v2, (mg_context))                                                      \
    X(stream_begin_capture, cuStreamBeginCapture, (mg_stream))                                                    \
    X(stream_begin_capture_ptsz, cuStreamBeginCapture_ptsz, (mg_stream))                                          \
    X(stream_begin_capture_v2, cuStreamBeginCapture_v2, (mg_stream, int))                                         \
    X(stream_begin_capture_v2_ptsz, cuStreamBeginCapture_v2_ptsz, (mg_stream, int))                               \
    X(stream_begin_capture_to_graph, cuStreamBeginCaptureToGraph,                                                 \
      (mg_stream, void *, const void *, const void *, size_t, int))                                               \
    X(stream_begin_capture_to_graph_ptsz, cuStreamBeginCaptureToGraph_ptsz,                                       \
      (mg_stream, void *, const void *, const void *, size_t, int))                                               \
    X(stream_end_capture, cuStreamEndCapture, (mg_stream, void **))                                               \
    X(stream_end_capture_ptsz, cuStreamEndCapture_ptsz, (mg_stream, void **))                                     \
    X(stream_destroy, cuStreamDestroy, (mg_stream))                                                               \
    X(stream_destroy_v2, cuStreamDestroy_v2, (mg_stream))                                                         \
    X(ctx_create, cuCtxCreate, (mg_context *, unsigned, mg_device))                                               \
    X(ctx_create_v2, cuCtxCreate_v2, (mg_context *, unsigned, mg_device))                                         \
    X(ctx_create_v3, cuCtxCreate_v3, (mg_context *, void *, int, unsigned, mg_device))                            \
    X(ctx_create_v4, cuCtxCreate_v4, (mg_context *, void *, unsigned, mg_device))                                 \
    X(device_can_access_peer, cuDeviceCanAccessPeer, (int *, mg_device, mg_device))                               \
    X(ctx_destroy, cuCtxDestroy, (mg_context))                                                                    \
    X(device_primary_ctx_reset, cuDevicePrimaryCtxReset, (mg_device))                                             \
    X(device_primary_ctx_release, cuDevicePrimaryCtxRelease, (mg_device))                                         \
    X(green_ctx_create, cuGreenCtxCreate, (void **, void *, mg_device, unsigned))                                 \
    X(ipc_open_mem_handle, cuIpcOpenMemHandle, (mg_address *, mg_ipc_handle, unsigned))                           \
    X(ipc_open_mem_handle_v2, cuIpcOpenMemHandle_v2, (mg_address *, mg_ipc_handle, unsigned))                     \
    X(ipc_open_event_handle, cuIpcOpenEventHandle, (mg_event *, mg_ipc_handle))                                   \
    X(ipc_close_mem_handle, cuIpcCloseMemHandle, (mg_address))                                                    \
    X(mem_export_to_shareable_handle, cuMemExportToShareableHandle, (void *, mg_handle, int, unsigned long long)) \
    X(mem_import_from_shareable_handle, cuMemImportFromShareableHandle, (mg_handle *, void *, int))

// The driver's own functions, found once and never through a hook.
typedef struct {
#define MG_MEMBER(member, name, parameters) mg_result(*member) parameters;
    MG_REQUIRED_FUNCTIONS(MG_MEMBER) MG_OPTIONAL_FUNCTIONS(MG_MEMBER)
#undef MG_MEMBER
} mg_driver;
