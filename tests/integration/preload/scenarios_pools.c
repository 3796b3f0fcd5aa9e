// Memory pools of the program's own: which are served, what they say of themselves, how they end.
#include <string.h>

#include "program.h"

// As CUmemPoolProps has it.
typedef struct {
    int allocation_type, handle_types, location_type, location_id;
    void *attributes;
    size_t most;
    unsigned short usage;
    unsigned char reserved[54];
} properties;

static const properties ordinary = {.allocation_type = 1, .location_type = 1};

static void *pool_of(const api *cuda, properties with) {
    void *pool = NULL;
    CHECK(cuda->cuMemPoolCreate(&pool, &with) == 0);
    return pool;
}

static uint64_t from(const api *cuda, void *pool, size_t size, void *stream, bool ours) {
    uint64_t address = 0;
    CHECK(cuda->cuMemAllocFromPoolAsync(&address, size, pool, stream) == 0);
    CHECK(is_placed(address) == ours);
    return address;
}

static void check_plain(const api *cuda, void *pool, void *stream) {
    CHECK(cuda->cuMemFreeAsync(from(cuda, pool, 4 * MIB, stream, false), stream) == 0);
}

static void served(const api *cuda) {
    void *stream, *current;
    CHECK(cuda->cuStreamCreate(&stream, 1) == 0);
    properties with = ordinary;
    with.handle_types = 1;  // its memory may be exported
    check_plain(cuda, pool_of(cuda, with), stream);
    with = ordinary;
    with.location_type = 2;  // the host's
    check_plain(cuda, pool_of(cuda, with), stream);
    with = ordinary;
    with.most = 64 * MIB;
    check_plain(cuda, pool_of(cuda, with), stream);
    with = ordinary;
    with.usage = 2;
    check_plain(cuda, pool_of(cuda, with), stream);
    void *const pool = pool_of(cuda, ordinary);
    const uint64_t first = from(cuda, pool, 4 * MIB, stream, true);
    // Access for the device itself changes nothing; for others it does, from then on.
    const struct { int type, id, flags; } self = {1, 0, 3}, other = {1, 1, 3};
    CHECK(cuda->cuMemPoolSetAccess(pool, &self, 1) == 0);
    CHECK(cuda->cuMemFreeAsync(first, stream) == 0);
    CHECK(from(cuda, pool, 4 * MIB, stream, true) == first);
    CHECK(cuda->cuMemPoolSetAccess(pool, &other, 1) == 0);
    check_plain(cuda, pool, stream);
    CHECK(cuda->cuMemFreeAsync(first, stream) == 0);
    // The device's current pool is where cuMemAllocAsync takes it from.
    uint64_t address = 0;
    CHECK(cuda->cuDeviceSetMemPool(0, pool) == 0);
    CHECK(cuda->cuMemAllocAsync(&address, 4 * MIB, stream) == 0 && !is_placed(address));
    CHECK(cuda->cuMemFreeAsync(address, stream) == 0);
    CHECK(cuda->cuDeviceGetDefaultMemPool(&current, 0) == 0 && cuda->cuDeviceSetMemPool(0, current) == 0);
    CHECK(cuda->cuMemAllocFromPoolAsync(&address, 4 * MIB, NULL, stream) == 1);
    // One pool's memory is not another's.
    void *const one = pool_of(cuda, ordinary), *const two = pool_of(cuda, ordinary);
    const uint64_t large = from(cuda, one, 4 * MIB, stream, true), small = from(cuda, one, 4096, stream, true);
    CHECK(cuda->cuMemFreeAsync(large, stream) == 0 && cuda->cuMemFreeAsync(small, stream) == 0);
    CHECK(from(cuda, two, 4 * MIB, stream, true) != large && from(cuda, two, 4096, stream, true) != small);
    check_nothing_left(cuda);
}

// A pool that is used before anything else is known of it, and one that too many came before.
static void many_pools(const api *cuda) {
    void *stream, *pools[60];
    CHECK(cuda->cuStreamCreate(&stream, 1) == 0);
    for (int i = 0; i < 60; ++i) pools[i] = pool_of(cuda, ordinary);
    for (int i = 0; i < 60; ++i) CHECK(cuda->cuMemFreeAsync(from(cuda, pools[i], 4 * MIB, stream, true), stream) == 0);
    for (int i = 0; i < 60; ++i) CHECK(cuda->cuMemPoolDestroy(pools[i]) == 0);
    // They are gone, and what was freed in them goes at the next synchronisation.
    CHECK(cuda->cuStreamSynchronize(stream) == 0);
    CHECK(stub_count("mappings") == 0);
    for (int i = 0; i < 60; ++i) pools[i] = pool_of(cuda, ordinary);
    CHECK(from(cuda, pools[59], 4 * MIB, stream, true) != 0);
    check_nothing_left(cuda);
}

static uint64_t attribute(const api *cuda, void *pool, int which) {
    uint64_t value = 12345;
    CHECK(cuda->cuMemPoolGetAttribute(pool, which, &value) == 0);
    return value;
}

enum { RESERVED = 5, RESERVED_HIGH, USED, USED_HIGH };

static void counted(const api *cuda) {
    void *stream;
    uint64_t keep = UINT64_MAX, zero = 0;
    int policy = 7;
    CHECK(cuda->cuStreamCreate(&stream, 1) == 0);
    void *const pool = pool_of(cuda, ordinary);
    CHECK(cuda->cuMemPoolSetAttribute(pool, 4, &keep) == 0 && attribute(cuda, pool, 4) == keep);
    CHECK(cuda->cuMemPoolSetAttribute(pool, 1, &policy) == 0);
    CHECK(cuda->cuMemPoolGetAttribute(pool, 1, &policy) == 0 && policy == 1);
    const uint64_t large = from(cuda, pool, 3 * MIB, stream, true), small = from(cuda, pool, 100, stream, true);
    CHECK(attribute(cuda, pool, USED) == 3 * MIB + 100 && attribute(cuda, pool, USED_HIGH) == 3 * MIB + 100);
    CHECK(attribute(cuda, pool, RESERVED) == 6 * MIB && attribute(cuda, pool, RESERVED_HIGH) == 6 * MIB);
    CHECK(cuda->cuMemFreeAsync(large, stream) == 0);
    CHECK(attribute(cuda, pool, USED) == 100 && attribute(cuda, pool, USED_HIGH) == 3 * MIB + 100);
    CHECK(attribute(cuda, pool, RESERVED) == 6 * MIB);
    CHECK(cuda->cuMemPoolSetAttribute(pool, USED_HIGH, &zero) == 0 && attribute(cuda, pool, USED_HIGH) == 100);
    // Another size in the same memory.
    CHECK(from(cuda, pool, 4 * MIB - 1, stream, true) != 0);
    CHECK(attribute(cuda, pool, USED) == 4 * MIB + 99 && attribute(cuda, pool, RESERVED) == 6 * MIB);
    CHECK(cuda->cuMemFree_v2(small) == 0 && attribute(cuda, pool, USED) == 4 * MIB - 1);
    CHECK(cuda->cuMemPoolTrimTo(pool, 0) == 0);
    CHECK(attribute(cuda, pool, RESERVED) == 4 * MIB);
    CHECK(cuda->cuMemPoolSetAttribute(pool, RESERVED_HIGH, &keep) == 1);
    check_nothing_left(cuda);
}

// A pool that is destroyed goes when the last of its memory does, and its handle may come back before.
static void destroyed(const api *cuda) {
    void *stream, *found = NULL;
    uint64_t keep = UINT64_MAX;
    CHECK(cuda->cuStreamCreate(&stream, 1) == 0);
    void *const pool = pool_of(cuda, ordinary);
    CHECK(cuda->cuMemPoolSetAttribute(pool, 4, &keep) == 0);
    const uint64_t large = from(cuda, pool, 4 * MIB, stream, true), small = from(cuda, pool, 100, stream, true);
    CHECK(cuda->cuMemPoolDestroy(pool) == 0);
    memset((void *)(uintptr_t)large, 1, 4 * MIB);
    CHECK(cuda->cuPointerGetAttribute(&found, 17, large) == 0 && found == pool);
    void *const next = pool_of(cuda, ordinary);
    CHECK(next == pool);
    CHECK(attribute(cuda, next, USED) == 0 && attribute(cuda, next, RESERVED) == 0);
    CHECK(cuda->cuMemFreeAsync(large, stream) == 0 && cuda->cuMemFreeAsync(small, stream) == 0);
    CHECK(from(cuda, next, 4 * MIB, stream, true) != large);
    CHECK(cuda->cuStreamSynchronize(stream) == 0);
    CHECK(stub_count("mappings") == 1);
    check_nothing_left(cuda);
}

// Of a pool in which nothing is, nothing stays: neither after a synchronisation, nor when it is trimmed.
static void emptied(const api *cuda) {
    void *const stream = new_stream(cuda), *const pool = pool_of(cuda, ordinary);
    for (int trimmed = 0; trimmed < 2; ++trimmed) {
        uint64_t keep = trimmed ? UINT64_MAX : 0;
        CHECK(cuda->cuMemPoolSetAttribute(pool, 4, &keep) == 0);
        const uint64_t small = from(cuda, pool, 512, stream, true), large = from(cuda, pool, 4 * MIB, stream, true);
        stub_work(stream, small);
        CHECK(cuda->cuMemFreeAsync(large, stream) == 0 && cuda->cuMemFreeAsync(small, stream) == 0);
        CHECK(cuda->cuStreamSynchronize(stream) == 0);
        if (trimmed) CHECK(cuda->cuMemPoolTrimTo(pool, 0) == 0);
        CHECK(attribute(cuda, pool, RESERVED) == 0 && attribute(cuda, pool, USED) == 0);
    }
    // The slab became empty before the synchronisation: an allocation in between had cleared it.
    uint64_t zero = 0;
    CHECK(cuda->cuMemPoolSetAttribute(pool, 4, &zero) == 0);
    CHECK(cuda->cuMemFreeAsync(from(cuda, pool, 512, stream, true), stream) == 0);
    const uint64_t other = from(cuda, pool, 4 * MIB, stream, true);
    CHECK(cuda->cuStreamSynchronize(stream) == 0);
    CHECK(attribute(cuda, pool, RESERVED) == 4 * MIB);
    CHECK(cuda->cuMemFreeAsync(other, stream) == 0);
    // A threshold that is lowered counts from the next synchronisation on.
    uint64_t keep = UINT64_MAX;
    CHECK(cuda->cuMemPoolSetAttribute(pool, 4, &keep) == 0);
    CHECK(cuda->cuMemFreeAsync(from(cuda, pool, 512, stream, true), stream) == 0);
    CHECK(cuda->cuStreamSynchronize(stream) == 0 && attribute(cuda, pool, RESERVED) == 6 * MIB);
    CHECK(cuda->cuMemPoolSetAttribute(pool, 4, &zero) == 0);
    CHECK(cuda->cuStreamSynchronize(stream) == 0 && attribute(cuda, pool, RESERVED) == 0);
    CHECK(stub_count("mappings") == 0 && stub_violations() == 0);
    check_nothing_left(cuda);
}

const scenario scenarios_of_pools[] = {
    {"pools_served", served}, {"many_pools", many_pools}, {"pools_counted", counted},
    {"pools_destroyed", destroyed}, {"pools_emptied", emptied}, {NULL, NULL},
};
