// What the two halves of the stub share.
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "stub_libcuda.h"

#define EXPORT __attribute__((visibility("default")))

// Counts a call, and returns the code with which it is to fail, or 0.
int enter(const char *name);

extern bool initialised;

#define ENTER                                      \
    do {                                           \
        const int refused_ = enter(__func__);      \
        if (refused_ != 0) return refused_;        \
        if (!initialised) return 3;                \
    } while (0)

extern pthread_mutex_t lock;
extern _Atomic long violations;
extern _Atomic int capturing;
int streams_refuse(void);
extern __thread int current_context;

bool is_live_context(int context);

// Plain memory; `pool` counts it (0: none). Its release waits for its context, if told so.
int allocate(uint64_t *address, size_t size, int pool);
int release(uint64_t address, bool wait);

// Pools count what is allocated from them. The caller holds the lock.
void pool_add(int pool, size_t size);
void pool_subtract(int pool, size_t size);
void *pool_handle(int pool);

// All work of a context's streams is over, or they are gone. The caller holds the lock.
void streams_finish(int context);
void streams_end(int context);

// Work that uses the memory at an address is enqueued in a stream; the current context's default one.
void streams_enqueue(int stream, uint64_t at);
int streams_legacy(void);

// Whether work that is under way uses memory between two addresses. The caller holds the lock.
bool streams_use(uint64_t start, uint64_t end);

// Functions of stub_streams.c by their exported names, for cuGetProcAddress.
#define STREAM_FUNCTIONS(X)                                                                                   \
    X(cuMemAllocAsync) X(cuMemAllocAsync_ptsz) X(cuMemAllocFromPoolAsync) X(cuMemAllocFromPoolAsync_ptsz)     \
    X(cuMemFreeAsync) X(cuMemFreeAsync_ptsz) X(cuStreamBeginCapture) X(cuStreamBeginCapture_ptsz)             \
    X(cuStreamBeginCapture_v2) X(cuStreamBeginCapture_v2_ptsz) X(cuStreamEndCapture) X(cuStreamEndCapture_ptsz) \
    X(cuStreamDestroy_v2) X(cuStreamCreate) X(cuStreamSynchronize) X(cuStreamSynchronize_ptsz)                \
    X(cuEventSynchronize) X(cuEventCreate) X(cuEventRecord) X(cuMemPoolCreate) X(cuMemPoolDestroy)            \
    X(cuMemPoolSetAccess) X(cuMemPoolSetAttribute) X(cuMemPoolGetAttribute) X(cuMemPoolTrimTo)                \
    X(cuDeviceGetDefaultMemPool) X(cuDeviceSetMemPool)
