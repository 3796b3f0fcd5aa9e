// Allocations that become regions.
#include <pthread.h>
#include <string.h>

#include "program.h"

// Sizes around all limits: slabs, units of 2 MiB, alignment.
static const size_t sizes[] = {1,       255,         256,     257,         4096,        MIB - 1,      MIB,     MIB + 1,
                               2 * MIB, 2 * MIB - 1, 2 * MIB + 1, 3 * MIB, 20 * MIB, 20 * MIB + 513, 64 * MIB};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void placed(const api *cuda) {
    uint64_t addresses[SIZES];
    for (size_t i = 0; i < SIZES; ++i) {
        addresses[i] = allocated(cuda, sizes[i]);
        CHECK(is_placed(addresses[i]));
    }
    CHECK(stub_count("plain") == 0);
    CHECK(stub_count("armed") > 0);
    for (size_t i = 0; i < SIZES; ++i) {
        const unsigned char *const bytes = (const unsigned char *)(uintptr_t)addresses[i];
        for (size_t at = 0; at < sizes[i]; ++at) CHECK(bytes[at] == 0x5a);
        CHECK(cuda->cuMemFree_v2(addresses[i]) == 0);
        CHECK(cuda->cuMemFree_v2(addresses[i]) == 1);  // twice is refused, as by the driver
    }
    check_nothing_left(cuda);
}

// An access past the end, or before the start, goes into a zone and harms no other client.
static void overrun(const api *cuda) {
    const size_t size = 3 * MIB + 100;
    const uint64_t address = allocated(cuda, size), neighbour = allocated(cuda, size);
    volatile unsigned char *const bytes = (volatile unsigned char *)(uintptr_t)address;
    const size_t end = (size + 511) & ~(size_t)511;
    CHECK(stub_count("armed") == (long)(2 * 80 * MIB));
    bytes[end] = 1;               // the very next unit
    bytes[end + 60 * MIB] = 2;
    bytes[-(long)MIB - (long)(8 * MIB)] = 3;
    CHECK(*(unsigned char *)(uintptr_t)neighbour == 0x5a);
    CHECK(bytes[end + 60 * MIB] == 2);
    CHECK(cuda->cuMemFree_v2(address) == 0 && cuda->cuMemFree_v2(neighbour) == 0);
    check_nothing_left(cuda);
}

static void reported(const api *cuda) {
    const size_t size = 5 * MIB + 7;
    const uint64_t address = allocated(cuda, size), small = allocated(cuda, 700);
    uint64_t start = 0;
    size_t length = 0;
    CHECK(cuda->cuMemGetAddressRange_v2(&start, &length, address + 4 * MIB) == 0);
    CHECK(start == address && length == size);
    CHECK(cuda->cuMemGetAddressRange_v2(NULL, &length, small + 699) == 0 && length == 700);
    CHECK(cuda->cuMemGetAddressRange_v2(&start, NULL, small + 3) == 0 && start == small);
    void *context = NULL, *now = NULL;
    cuCtxGetCurrent(&now);
    CHECK(cuda->cuPointerGetAttribute(&context, 1, address) == 0 && context == now);
    CHECK(cuda->cuPointerGetAttribute(&start, 11, address + 1) == 0 && start == address);
    CHECK(cuda->cuPointerGetAttribute(&length, 12, address + 1) == 0 && length == size);
    unsigned kind = 0;
    _Bool shareable = 0;
    int attributes[] = {2, 1, 11, 12, 10};
    void *data[] = {&kind, &context, &start, &length, &shareable};
    context = NULL;
    CHECK(cuda->cuPointerGetAttributes(5, attributes, data, address + size - 1) == 0);
    CHECK(kind == 2 && context == now && start == address && length == size && shareable);
    unsigned long long handle;
    CHECK(cuda->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address) == 1);
    CHECK(cuda->cuMemFree_v2(address + 1) == 1);
    CHECK(cuda->cuMemFree_v2(small + 512) == 1);
    CHECK(cuda->cuMemFree_v2(address) == 0 && cuda->cuMemFree_v2(small) == 0);
    CHECK(cuda->cuMemFree_v2(0) == 0);
    check_nothing_left(cuda);
}

static void pitch(const api *cuda) {
    uint64_t address = 0;
    size_t row = 0;
    CHECK(cuda->cuMemAllocPitch_v2(&address, &row, 1000, 4096, 4) == 0);
    CHECK(row == 1024 && is_placed(address));
    memset((void *)(uintptr_t)address, 1, row * 4096);
    CHECK(cuda->cuMemFree_v2(address) == 0);
    CHECK(cuda->cuMemAllocPitch_v2(&address, &row, 1000, 10, 3) == 1);
    check_nothing_left(cuda);
}

// A free waits for the work that uses the memory, as the driver's own does; unmapping alone does not.
static void waits(const api *cuda) {
    for (int i = 0; i < 3; ++i) {
        const uint64_t large = allocated(cuda, 4 * MIB), small = allocated(cuda, 4096);
        stub_launch();
        CHECK(cuda->cuMemFree_v2(large) == 0);
        stub_launch();
        CHECK(cuda->cuMemFree_v2(small) == 0);
        CHECK(stub_violations() == 0);
    }
    // What the wait says is what the program is told, and the memory stays.
    const uint64_t large = allocated(cuda, 4 * MIB);
    stub_fail("cuCtxSynchronize", 1, 700);
    CHECK(cuda->cuMemFree_v2(large) == 700);
    CHECK(is_placed(large));
    CHECK(cuda->cuMemFree_v2(large) == 0);
    check_nothing_left(cuda);
}

// Freed memory is really free, and its addresses are not accessible; they are used again.
static void reused(const api *cuda) {
    const uint64_t first = allocated(cuda, 6 * MIB);
    CHECK(cuda->cuMemFree_v2(first) == 0);
    CHECK(stub_count("handles") == 0 && stub_count("mappings") == 0);
    const long reserved = stub_calls("cuMemAddressReserve");
    for (int i = 0; i < 100; ++i) {
        const uint64_t again = allocated(cuda, 6 * MIB);
        CHECK(again == first);
        CHECK(cuda->cuMemFree_v2(again) == 0);
    }
    CHECK(stub_calls("cuMemAddressReserve") == reserved);
    for (size_t i = 0; i < 500; ++i) {
        uint64_t address;
        CHECK(cuda->cuMemAlloc_v2(&address, (2 + i) * MIB) == 0);
        CHECK(is_placed(address));
        CHECK(cuda->cuMemFree_v2(address) == 0);
    }
    // What is armed no longer does not count: the next zones are as long as the first.
    const long before = stub_count("armed");
    uint64_t address;
    CHECK(cuda->cuMemAlloc_v2(&address, 1403 * MIB) == 0);
    CHECK(stub_count("armed") - before == (long)(80 * MIB));
    CHECK(stub_count("reservations") <= 65);
    check_nothing_left(cuda);
}

// 10,000 small allocations take no more memory than they need, and no region each.
static void many_small(const api *cuda) {
    enum { COUNT = 10000 };
    static uint64_t addresses[COUNT];
    for (int i = 0; i < COUNT; ++i) addresses[i] = allocated(cuda, 1000);
    CHECK(stub_count("mappings") <= COUNT * 1024 / (2 * (long)MIB) + 1);
    for (int i = 0; i < COUNT; i += 2) CHECK(cuda->cuMemFree_v2(addresses[i]) == 0);
    for (int i = 0; i < COUNT; i += 2) addresses[i] = allocated(cuda, 1000);
    CHECK(stub_count("mappings") <= COUNT * 1024 / (2 * (long)MIB) + 1);
    for (int i = 0; i < COUNT; ++i) CHECK(cuda->cuMemFree_v2(addresses[i]) == 0);
    CHECK(stub_count("mappings") <= 1);
    check_nothing_left(cuda);
}

// Memory goes with its context, without having been freed.
static void contexts(const api *cuda) {
    void *primary = NULL, *own = NULL;
    cuCtxGetCurrent(&primary);
    allocated(cuda, 5 * MIB);
    CHECK(cuCtxCreate_v2(&own, 0, 0) == 0);
    const uint64_t in_own = allocated(cuda, 4 * MIB), small = allocated(cuda, 100);
    CHECK(is_placed(in_own) && is_placed(small));
    CHECK(cuCtxSetCurrent(primary) == 0);
    // Freed from another context: the work of its own is waited for.
    const uint64_t other = in_own;
    CHECK(cuda->cuMemFree_v2(other) == 0);
    void *now = NULL;
    cuCtxGetCurrent(&now);
    CHECK(now == primary);
    CHECK(cuda->cuCtxDestroy_v2(own) == 0);
    CHECK(stub_count("mappings") == 1);
    CHECK(cuda->cuMemFree_v2(small) == 1);
    CHECK(cuda->cuDevicePrimaryCtxRelease_v2(0) == 0);
    CHECK(stub_count("mappings") == 0);
    CHECK(stub_count("handles") == 0 && stub_count("reservations") == 0 && stub_count("armed") == 0);
    CHECK(stub_violations() == 0);
}

static void *worker(void *argument) {
    const api *const cuda = argument;
    static _Atomic unsigned seeds;
    unsigned seed = ++seeds;
    void *context;
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    struct { unsigned char *bytes; size_t size; unsigned char mark; } held[16] = {0};
    for (int i = 0; i < 400; ++i) {
        const int at = rand_r(&seed) % 16;
        if (held[at].bytes != NULL) {
            CHECK(held[at].bytes[0] == held[at].mark && held[at].bytes[held[at].size - 1] == held[at].mark);
            CHECK(cuda->cuMemFree_v2((uint64_t)(uintptr_t)held[at].bytes) == 0);
            held[at].bytes = NULL;
            continue;
        }
        held[at].size = sizes[rand_r(&seed) % (SIZES - 3)];
        uint64_t address;
        CHECK(cuda->cuMemAlloc_v2(&address, held[at].size) == 0);
        held[at].bytes = (unsigned char *)(uintptr_t)address;
        held[at].mark = (unsigned char)rand_r(&seed);
        held[at].bytes[0] = held[at].bytes[held[at].size - 1] = held[at].mark;
    }
    for (int at = 0; at < 16; ++at)
        if (held[at].bytes != NULL) CHECK(cuda->cuMemFree_v2((uint64_t)(uintptr_t)held[at].bytes) == 0);
    return NULL;
}

static void threads(const api *cuda) {
    pthread_t threads[8];
    for (int i = 0; i < 8; ++i) CHECK(pthread_create(&threads[i], NULL, worker, (void *)(uintptr_t)cuda) == 0);
    for (int i = 0; i < 8; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
    check_nothing_left(cuda);
}

const scenario scenarios_of_memory[] = {
    {"placed", placed},   {"overrun", overrun},       {"reported", reported}, {"pitch", pitch},     {"waits", waits},
    {"reused", reused},   {"many_small", many_small}, {"contexts", contexts}, {"threads", threads}, {NULL, NULL},
};
