// Stream-ordered allocation: what may be handed out again, when, and when it is given back.
#include <pthread.h>
#include <string.h>

#include "program.h"

#define LEGACY ((void *)1)
#define PER_THREAD ((void *)2)

// It is memory with zones, and is described as the driver describes what it allocates so.
static void described(const api *cuda) {
    static const size_t sizes[] = {1, 100, 4096, MIB, MIB + 1, 2 * MIB, 20 * MIB + 513};
    void *const stream = new_stream(cuda);
    uint64_t addresses[7];
    for (int i = 0; i < 7; ++i) {
        uint64_t start = 0;
        size_t size = 0;
        void *context = stream, *pool = NULL, *wanted;
        addresses[i] = ordered(cuda, sizes[i], i % 2 ? stream : NULL);
        CHECK(cuda->cuMemGetAddressRange_v2(&start, &size, addresses[i]) == 0);
        CHECK(start == addresses[i] && size == sizes[i]);
        CHECK(cuda->cuPointerGetAttribute(&context, 1, addresses[i]) == 0 && context == NULL);
        CHECK(cuda->cuDeviceGetDefaultMemPool(&wanted, 0) == 0);
        CHECK(cuda->cuPointerGetAttribute(&pool, 17, addresses[i]) == 0 && pool == wanted);
    }
    const uint64_t other = allocated(cuda, 4 * MIB);
    void *pool = stream;
    CHECK(cuda->cuPointerGetAttribute(&pool, 17, other) == 0 && pool == NULL);
    ((volatile unsigned char *)(uintptr_t)addresses[5])[2 * MIB] = 1;  // into its zone
    for (int i = 0; i < 7; ++i) {
        CHECK(cuda->cuMemFreeAsync(addresses[i], i % 3 ? stream : NULL) == 0);
        CHECK(cuda->cuMemFreeAsync(addresses[i], stream) == 1);
        CHECK(cuda->cuMemFree_v2(addresses[i]) == 1);
    }
    uint64_t nothing = 0;
    CHECK(cuda->cuMemFreeAsync(other + 512, stream) == 1);
    CHECK(cuda->cuMemAllocAsync(&nothing, 0, stream) == 1 && cuda->cuMemAllocAsync(NULL, 1, stream) == 1);
    CHECK(cuda->cuMemFree_v2(other) == 0);
    check_nothing_left(cuda);
}

// In its own stream freed memory is used again at once; elsewhere when the work before the free is over.
static void used_again(const api *cuda, size_t size) {
    void *const one = new_stream(cuda), *const other = new_stream(cuda);
    set_threshold(cuda, KEEP_ALL);
    const uint64_t first = ordered(cuda, size, one);
    stub_work(one, first);
    CHECK(cuda->cuMemFreeAsync(first, one) == 0);
    const long made = stub_calls("cuMemCreate");
    const uint64_t again = ordered(cuda, size, one);
    CHECK(again == first && stub_calls("cuMemCreate") == made);
    stub_work(one, again);
    CHECK(cuda->cuMemFreeAsync(again, one) == 0);
    const uint64_t apart = ordered(cuda, size, other);
    CHECK(apart != first);
    stub_finish(one);
    CHECK(ordered(cuda, size, other) == first);
    CHECK(stub_violations() == 0);
    // A stream that took the handle of another one that was destroyed is not that one.
    stub_work(other, first);
    CHECK(cuda->cuMemFreeAsync(first, other) == 0);
    CHECK(cuda->cuStreamDestroy_v2(other) == 0);
    void *const newcomer = new_stream(cuda);
    CHECK(newcomer == other);
    CHECK(ordered(cuda, size, newcomer) != first);
    stub_finish_all();
    CHECK(ordered(cuda, size, newcomer) == first);
    check_nothing_left(cuda);
}
static void used_again_large(const api *cuda) { used_again(cuda, 4 * MIB); }
static void used_again_small(const api *cuda) { used_again(cuda, 5000); }

// Each thread has a default stream of its own, which is not the one that all have.
static uint64_t freed_in_thread;
static void *in_thread(void *argument) {
    const api *const cuda = argument;
    void *context;
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    const uint64_t address = ordered(cuda, 4 * MIB, PER_THREAD);
    CHECK(address != freed_in_thread);
    stub_work(PER_THREAD, address);
    CHECK(cuda->cuMemFreeAsync(address, PER_THREAD) == 0);
    CHECK(ordered(cuda, 4 * MIB, PER_THREAD) == address);
    CHECK(cuda->cuMemFreeAsync(address, PER_THREAD) == 0);
    freed_in_thread = address;
    return NULL;
}
static void default_streams(const api *cuda) {
    pthread_t thread;
    set_threshold(cuda, KEEP_ALL);
    const uint64_t mine = freed_in_thread = ordered(cuda, 4 * MIB, PER_THREAD);
    stub_work(PER_THREAD, mine);
    CHECK(cuda->cuMemFreeAsync(mine, PER_THREAD) == 0);
    CHECK(pthread_create(&thread, NULL, in_thread, (void *)(uintptr_t)cuda) == 0 && pthread_join(thread, NULL) == 0);
    const uint64_t in_legacy = ordered(cuda, 4 * MIB, LEGACY);
    CHECK(in_legacy != mine && in_legacy != freed_in_thread);
    CHECK(ordered(cuda, 4 * MIB, PER_THREAD) == mine);
    stub_work(LEGACY, in_legacy);
    CHECK(cuda->cuMemFreeAsync(in_legacy, LEGACY) == 0);
    CHECK(ordered(cuda, 4 * MIB, PER_THREAD) != in_legacy);
    CHECK(ordered(cuda, 4 * MIB, LEGACY) == in_legacy);
    CHECK(stub_violations() == 0);
    check_nothing_left(cuda);
}

// 0, which a program passes without knowing which default stream it means, is that of the way it came by the function.
static void stream_zero(const api *cuda) {
    set_threshold(cuda, KEEP_ALL);
    const uint64_t zero = ordered(cuda, 4 * MIB, NULL);
    stub_work(LEGACY, zero);
    stub_work(PER_THREAD, zero);
    CHECK(cuda->cuMemFreeAsync(zero, NULL) == 0);
    const uint64_t legacy = ordered(cuda, 4 * MIB, LEGACY), own = ordered(cuda, 4 * MIB, PER_THREAD);
    const char *const way = getenv("WAY_PER_THREAD");
    CHECK((way != NULL ? own : legacy) == zero && (way != NULL ? legacy : own) != zero);
    check_nothing_left(cuda);
}

// What is freed and over is given back by the next synchronisation, down to the pool's release threshold.
static void given_back(const api *cuda) {
    void *const one = new_stream(cuda), *const other = new_stream(cuda), *event;
    CHECK(cuda->cuEventCreate(&event, 2) == 0);
    for (int how = 0; how < 3; ++how) {
        const uint64_t first = ordered(cuda, 4 * MIB, one), second = ordered(cuda, 6 * MIB, other);
        stub_work(one, first);
        stub_work(other, second);
        CHECK(cuda->cuMemFreeAsync(first, one) == 0 && cuda->cuMemFreeAsync(second, other) == 0);
        CHECK(cuda->cuEventRecord(event, one) == 0);
        CHECK(stub_count("mappings") == 2 && stub_count("handles") == 2);
        if (how == 0) CHECK(cuda->cuStreamSynchronize(one) == 0);
        if (how == 1) CHECK(cuda->cuEventSynchronize(event) == 0);
        if (how == 2) CHECK(cuda->cuCtxSynchronize() == 0);
        // Work in the other stream may still use the other one.
        CHECK(stub_count("mappings") == (how == 2 ? 0 : 1) && stub_violations() == 0);
        CHECK(cuda->cuCtxSynchronize() == 0);
        CHECK(stub_count("mappings") == 0 && stub_count("handles") == 0);
    }
    set_threshold(cuda, 10 * MIB);
    const uint64_t kept = ordered(cuda, 4 * MIB, one), gone = ordered(cuda, 8 * MIB, one);
    CHECK(cuda->cuMemFreeAsync(kept, one) == 0 && cuda->cuMemFreeAsync(gone, one) == 0);
    CHECK(cuda->cuStreamSynchronize(one) == 0);
    CHECK(stub_count("mappings") == 1);
    CHECK(ordered(cuda, 4 * MIB, one) == kept);
    check_nothing_left(cuda);
}

// Sizes that never come again do not pile up under a threshold that would keep them all.
static void bounded(const api *cuda) {
    void *const stream = new_stream(cuda);
    set_threshold(cuda, KEEP_ALL);
    for (size_t i = 0; i < 100; ++i) CHECK(cuda->cuMemFreeAsync(ordered(cuda, (20 + 4 * i) * MIB, stream), stream) == 0);
    size_t held = 0;
    void *pool;
    CHECK(cuda->cuDeviceGetDefaultMemPool(&pool, 0) == 0 && cuda->cuMemPoolGetAttribute(pool, 5, &held) == 0);
    CHECK(held >= 416 * MIB && held <= 640 * MIB);
    // Small ones are cut anew.
    const long before = stub_count("mappings");
    for (size_t i = 1; i < 4000; ++i) CHECK(cuda->cuMemFreeAsync(ordered(cuda, 100 * i, stream), stream) == 0);
    CHECK(stub_count("mappings") <= before + 2);
    CHECK(cuda->cuMemPoolTrimTo(pool, 0) == 0);
    CHECK(stub_count("mappings") <= 1);
    check_nothing_left(cuda);
}

const scenario scenarios_of_order[] = {
    {"described", described},
    {"used_again_large", used_again_large},
    {"used_again_small", used_again_small},
    {"default_streams", default_streams},
    {"stream_zero", stream_zero},
    {"given_back", given_back},
    {"bounded", bounded},
    {NULL, NULL},
};
