// The hooks, in one table: for each driver function that is exported under a name of its own, the same signature and
// meaning.
#pragma once

#include "driver_api.h"

// X(exported name, name for cuGetProcAddress, first CUDA version with it, variant for the per-thread default stream)
#define HOOKS(X)                                                                      \
    X(cuMemAlloc_v2, "cuMemAlloc", 3020, 0)                                           \
    X(cuMemFree_v2, "cuMemFree", 3020, 0)                                             \
    X(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, 0)                                 \
    X(cuMemGetAddressRange_v2, "cuMemGetAddressRange", 3020, 0)                       \
    X(cuMemAllocAsync, "cuMemAllocAsync", 11020, 0)                                   \
    X(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020, 1)                              \
    X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, 0)                   \
    X(cuMemAllocFromPoolAsync_ptsz, "cuMemAllocFromPoolAsync", 11020, 1)              \
    X(cuMemFreeAsync, "cuMemFreeAsync", 11020, 0)                                     \
    X(cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020, 1)                                \
    X(cuMemPoolCreate, "cuMemPoolCreate", 11020, 0)                                   \
    X(cuMemPoolDestroy, "cuMemPoolDestroy", 11020, 0)                                 \
    X(cuMemPoolSetAccess, "cuMemPoolSetAccess", 11020, 0)                             \
    X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 11020, 0)                       \
    X(cuMemPoolGetAttribute, "cuMemPoolGetAttribute", 11020, 0)                       \
    X(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, 0)                                   \
    X(cuMemCreate, "cuMemCreate", 10020, 0)                                           \
    X(cuCtxSynchronize, "cuCtxSynchronize", 2000, 0)                                  \
    X(cuCtxSynchronize_v2, "cuCtxSynchronize", 13000, 0)                              \
    X(cuStreamSynchronize, "cuStreamSynchronize", 2000, 0)                            \
    X(cuStreamSynchronize_ptsz, "cuStreamSynchronize", 7000, 1)                       \
    X(cuEventSynchronize, "cuEventSynchronize", 2000, 0)                              \
    X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000, 0)           \
    X(cuPointerGetAttribute, "cuPointerGetAttribute", 4000, 0)                        \
    X(cuPointerGetAttributes, "cuPointerGetAttributes", 7000, 0)                      \
    X(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010, 0)                                \
    X(cuIpcOpenMemHandle, "cuIpcOpenMemHandle", 4010, 0)                              \
    X(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000, 0)                          \
    X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010, 0)                            \
    X(cuStreamBeginCapture, "cuStreamBeginCapture", 10000, 0)                         \
    X(cuStreamBeginCapture_ptsz, "cuStreamBeginCapture", 10000, 1)                    \
    X(cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010, 0)                      \
    X(cuStreamBeginCapture_v2_ptsz, "cuStreamBeginCapture", 10010, 1)                 \
    X(cuStreamBeginCaptureToGraph, "cuStreamBeginCaptureToGraph", 12030, 0)           \
    X(cuStreamBeginCaptureToGraph_ptsz, "cuStreamBeginCaptureToGraph", 12030, 1)      \
    X(cuStreamEndCapture, "cuStreamEndCapture", 10000, 0)                             \
    X(cuStreamEndCapture_ptsz, "cuStreamEndCapture", 10000, 1)                        \
    X(cuStreamDestroy, "cuStreamDestroy", 2000, 0)                                    \
    X(cuStreamDestroy_v2, "cuStreamDestroy", 4000, 0)                                 \
    X(cuCtxDestroy, "cuCtxDestroy", 2000, 0)                                          \
    X(cuCtxDestroy_v2, "cuCtxDestroy", 4000, 0)                                       \
    X(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, 0)                    \
    X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, 0)                \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 7000, 0)                \
    X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, 0)            \
    X(cuGreenCtxCreate, "cuGreenCtxCreate", 12040, 0)                                 \
    X(cuGetProcAddress, "cuGetProcAddress", 11030, 0)                                 \
    X(cuGetProcAddress_v2, "cuGetProcAddress", 12000, 0)

#define MG_DECLARE(name, parameters) mg_result name parameters;
MG_REQUIRED_FUNCTIONS(MG_DECLARE)
MG_OPTIONAL_FUNCTIONS(MG_DECLARE)
#undef MG_DECLARE
