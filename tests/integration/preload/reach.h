// The driver functions of a test program, and the ways in which real programs come by them.
#pragma once

#include <stddef.h>
#include <stdint.h>

// CUipcMemHandle, which is passed by value.
typedef struct { char bytes[64]; } ipc_bytes;

// Kept in the order of the X list below.
#define REACHED(X)                                                               \
    X(cuMemAlloc_v2, "cuMemAlloc", (uint64_t *, size_t))                         \
    X(cuMemFree_v2, "cuMemFree", (uint64_t))                                     \
    X(cuMemAllocPitch_v2, "cuMemAllocPitch", (uint64_t *, size_t *, size_t, size_t, unsigned)) \
    X(cuMemAllocAsync, "cuMemAllocAsync", (uint64_t *, size_t, void *))          \
    X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", (uint64_t *, size_t, void *, void *)) \
    X(cuMemFreeAsync, "cuMemFreeAsync", (uint64_t, void *))                      \
    X(cuMemGetAddressRange_v2, "cuMemGetAddressRange", (uint64_t *, size_t *, uint64_t)) \
    X(cuPointerGetAttribute, "cuPointerGetAttribute", (void *, int, uint64_t))   \
    X(cuPointerGetAttributes, "cuPointerGetAttributes", (unsigned, int *, void **, uint64_t)) \
    X(cuIpcGetMemHandle, "cuIpcGetMemHandle", (void *, uint64_t))                \
    X(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", (uint64_t *, ipc_bytes, unsigned)) \
    X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", (uint64_t))                    \
    X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", (unsigned long long *, void *)) \
    X(cuStreamCreate, "cuStreamCreate", (void **, unsigned))                     \
    X(cuStreamSynchronize, "cuStreamSynchronize", (void *))                      \
    X(cuCtxSynchronize, "cuCtxSynchronize", (void))                              \
    X(cuEventCreate, "cuEventCreate", (void **, unsigned))                       \
    X(cuEventRecord, "cuEventRecord", (void *, void *))                          \
    X(cuEventSynchronize, "cuEventSynchronize", (void *))                        \
    X(cuMemCreate, "cuMemCreate", (unsigned long long *, size_t, const void *, unsigned long long)) \
    X(cuMemPoolCreate, "cuMemPoolCreate", (void **, const void *))               \
    X(cuMemPoolDestroy, "cuMemPoolDestroy", (void *))                            \
    X(cuMemPoolSetAccess, "cuMemPoolSetAccess", (void *, const void *, size_t))  \
    X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", (void *, int, void *))     \
    X(cuMemPoolGetAttribute, "cuMemPoolGetAttribute", (void *, int, void *))     \
    X(cuMemPoolTrimTo, "cuMemPoolTrimTo", (void *, size_t))                      \
    X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", (void **, int))    \
    X(cuDeviceSetMemPool, "cuDeviceSetMemPool", (int, void *))                   \
    X(cuStreamBeginCapture_v2, "cuStreamBeginCapture", (void *, int))            \
    X(cuStreamEndCapture, "cuStreamEndCapture", (void *, void **))               \
    X(cuStreamDestroy_v2, "cuStreamDestroy", (void *))                           \
    X(cuCtxDestroy_v2, "cuCtxDestroy", (void *))                                 \
    X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", (int))          \
    X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", (int))              \
    X(cuGreenCtxCreate, "cuGreenCtxCreate", (void **, void *, int, unsigned))

typedef struct {
#define MEMBER(name, symbol, parameters) int(*name) parameters;
    REACHED(MEMBER)
#undef MEMBER
} api;

// How: "direct" (linked), "dlsym", "default" (dlsym with RTLD_DEFAULT), "proc1", "proc2" (cuGetProcAddress of that
// version), "ptsz" (its variants for the per-thread default stream), "nested" (cuGetProcAddress asked for itself).
// False if a function is missing or there is no such way.
int reach(const char *how, api *out);
