// The hooks, in one table: for each driver function that is exported under a name of its own, the same signature and
// meaning.
#pragma once

#include "driver_api.h"

// X(member of mg_driver, exported name, name for cuGetProcAddress, first CUDA version with it, variant for the per-thread
// default stream)
#define HOOKS(X)                                                                                                     \
    X(mem_alloc_v2, cuMemAlloc_v2, "cuMemAlloc", 3020, 0)                                                            \
    X(mem_free_v2, cuMemFree_v2, "cuMemFree", 3020, 0)                                                               \
    X(mem_alloc_pitch_v2, cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, 0)                                            \
    X(mem_get_address_range_v2, cuMemGetAddressRange_v2, "cuMemGetAddressRange", 3020, 0)                            \
    X(mem_alloc_async, cuMemAllocAsync, "cuMemAllocAsync", 11020, 0)                                                 \
    X(mem_alloc_async_ptsz, cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020, 1)                                       \
    X(mem_alloc_from_pool_async, cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, 0)                       \
    X(mem_alloc_from_pool_async_ptsz, cuMemAllocFromPoolAsync_ptsz, "cuMemAllocFromPoolAsync", 11020, 1)             \
    X(mem_free_async, cuMemFreeAsync, "cuMemFreeAsync", 11020, 0)                                                    \
    X(mem_free_async_ptsz, cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020, 1)                                          \
    X(mem_pool_create, cuMemPoolCreate, "cuMemPoolCreate", 11020, 0)                                                 \
    X(mem_pool_destroy, cuMemPoolDestroy, "cuMemPoolDestroy", 11020, 0)                                              \
    X(mem_pool_set_access, cuMemPoolSetAccess, "cuMemPoolSetAccess", 11020, 0)                                       \
    X(mem_pool_set_attribute, cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 11020, 0)                              \
    X(mem_pool_get_attribute, cuMemPoolGetAttribute, "cuMemPoolGetAttribute", 11020, 0)                              \
    X(mem_pool_trim_to, cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, 0)                                                \
    X(mem_create, cuMemCreate, "cuMemCreate", 10020, 0)                                                              \
    X(ctx_synchronize, cuCtxSynchronize, "cuCtxSynchronize", 2000, 0)                                                \
    X(ctx_synchronize_v2, cuCtxSynchronize_v2, "cuCtxSynchronize", 13000, 0)                                         \
    X(stream_synchronize, cuStreamSynchronize, "cuStreamSynchronize", 2000, 0)                                       \
    X(stream_synchronize_ptsz, cuStreamSynchronize_ptsz, "cuStreamSynchronize", 7000, 1)                             \
    X(event_synchronize, cuEventSynchronize, "cuEventSynchronize", 2000, 0)                                          \
    X(mem_retain_allocation_handle, cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000, 0)            \
    X(pointer_get_attribute, cuPointerGetAttribute, "cuPointerGetAttribute", 4000, 0)                                \
    X(pointer_get_attributes, cuPointerGetAttributes, "cuPointerGetAttributes", 7000, 0)                             \
    X(ipc_get_mem_handle, cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010, 0)                                           \
    X(ipc_open_mem_handle, cuIpcOpenMemHandle, "cuIpcOpenMemHandle", 4010, 0)                                        \
    X(ipc_open_mem_handle_v2, cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000, 0)                                 \
    X(ipc_open_event_handle, cuIpcOpenEventHandle, "cuIpcOpenEventHandle", 4010, 0)                                  \
    X(ipc_close_mem_handle, cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010, 0)                                     \
    X(stream_begin_capture, cuStreamBeginCapture, "cuStreamBeginCapture", 10000, 0)                                  \
    X(stream_begin_capture_ptsz, cuStreamBeginCapture_ptsz, "cuStreamBeginCapture", 10000, 1)                        \
    X(stream_begin_capture_v2, cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010, 0)                            \
    X(stream_begin_capture_v2_ptsz, cuStreamBeginCapture_v2_ptsz, "cuStreamBeginCapture", 10010, 1)                  \
    X(stream_begin_capture_to_graph, cuStreamBeginCaptureToGraph, "cuStreamBeginCaptureToGraph", 12030, 0)           \
    X(stream_begin_capture_to_graph_ptsz, cuStreamBeginCaptureToGraph_ptsz, "cuStreamBeginCaptureToGraph", 12030, 1) \
    X(stream_end_capture, cuStreamEndCapture, "cuStreamEndCapture", 10000, 0)                                        \
    X(stream_end_capture_ptsz, cuStreamEndCapture_ptsz, "cuStreamEndCapture", 10000, 1)                              \
    X(stream_destroy, cuStreamDestroy, "cuStreamDestroy", 2000, 0)                                                   \
    X(stream_destroy_v2, cuStreamDestroy_v2, "cuStreamDestroy", 4000, 0)                                             \
    X(device_primary_ctx_retain, cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, 0)                      \
    X(ctx_create, cuCtxCreate, "cuCtxCreate", 2000, 0)                                                               \
    X(ctx_create_v2, cuCtxCreate_v2, "cuCtxCreate", 3020, 0)                                                         \
    X(ctx_create_v3, cuCtxCreate_v3, "cuCtxCreate", 11040, 0)                                                        \
    X(ctx_create_v4, cuCtxCreate_v4, "cuCtxCreate", 12050, 0)                                                        \
    X(ctx_destroy, cuCtxDestroy, "cuCtxDestroy", 2000, 0)                                                            \
    X(ctx_destroy_v2, cuCtxDestroy_v2, "cuCtxDestroy", 4000, 0)                                                      \
    X(device_primary_ctx_reset, cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, 0)                         \
    X(device_primary_ctx_reset_v2, cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, 0)                  \
    X(device_primary_ctx_release, cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 7000, 0)                   \
    X(device_primary_ctx_release_v2, cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, 0)            \
    X(green_ctx_create, cuGreenCtxCreate, "cuGreenCtxCreate", 12040, 0)                                              \
    X(get_proc_address, cuGetProcAddress, "cuGetProcAddress", 11030, 0)                                              \
    X(get_proc_address_v2, cuGetProcAddress_v2, "cuGetProcAddress", 12000, 0)

#define MG_DECLARE(member, name, parameters) mg_result name parameters;
MG_REQUIRED_FUNCTIONS(MG_DECLARE)
MG_OPTIONAL_FUNCTIONS(MG_DECLARE)
#undef MG_DECLARE
