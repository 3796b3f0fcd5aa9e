// A random program with several streams, checked against a model: memory that is handed out must not be memory that work
// before a free may still use. SEED in the environment.
#include <string.h>

#include "program.h"

enum { HELD = 40, STREAMS = 5, STEPS = 4000, FREED = 4096 };

typedef struct {
    uint64_t address;
    size_t size;
    unsigned char mark;
    bool in_order;
    int which;         // the stream that uses it
    long stream;       // as long as its handle is not another's
} held;

// A free in stream order: until its point is reached, the memory may be in use.
typedef struct {
    uint64_t address;
    size_t size;
    stub_point point;
} freed;

static unsigned seed;
static freed list_of_freed[FREED];
static int freed_count;
static void *streams[STREAMS];

static size_t below(size_t most) { return (size_t)(((uint64_t)rand_r(&seed) << 16 ^ (uint64_t)rand_r(&seed)) % most); }

static size_t some_size(void) {
    switch (below(3)) {
        case 0: return (1 + below(6)) * 500;
        case 1: return (1 + below(5)) * 65536;
        default: return (1 + below(16)) * MIB;
    }
}

static bool overlap(uint64_t one, size_t size, uint64_t other, size_t other_size) {
    return one < other + other_size && other < one + size;
}

// `stream`: the one that orders its allocation, or 0.
static void check_new(const held *list, const held *h, long stream) {
    for (int i = 0; i < HELD; ++i)
        if (list[i].address != 0 && &list[i] != h) CHECK(!overlap(h->address, h->size, list[i].address, list[i].size));
    for (int i = freed_count; i-- > 0;) {
        const freed *const f = &list_of_freed[i];
        if (overlap(h->address, h->size, f->address, f->size)) CHECK(f->point.stream == stream || stub_is_past(f->point));
        if (stub_is_past(f->point)) list_of_freed[i] = list_of_freed[--freed_count];
    }
}

static void take(const api *cuda, held *list, held *h, int which) {
    void *const stream = streams[which];
    h->size = some_size();
    h->mark = (unsigned char)below(256);
    h->in_order = below(4) > 0;
    h->which = which;
    h->stream = stub_now(stream).stream;
    h->address = 0;
    const int result = h->in_order ? cuda->cuMemAllocAsync(&h->address, h->size, stream)
                                   : cuda->cuMemAlloc_v2(&h->address, h->size);
    if (result != 0) {
        h->address = 0;  // only when less is free than it takes
        return;
    }
    check_new(list, h, h->in_order ? h->stream : 0);
    unsigned char *const bytes = (unsigned char *)(uintptr_t)h->address;
    bytes[0] = bytes[h->size - 1] = h->mark;
    for (size_t i = below(4); i > 0; --i) stub_work(stream, h->address + below(h->size));
}

static void give(const api *cuda, held *h) {
    const unsigned char *const bytes = (const unsigned char *)(uintptr_t)h->address;
    CHECK(bytes[0] == h->mark && bytes[h->size - 1] == h->mark);
    if (below(4) == 0) {
        // cuMemFree waits for the work on what cuMemAlloc allocated; on the rest the program must have waited.
        if (h->in_order) CHECK(cuda->cuCtxSynchronize() == 0);
        CHECK(cuda->cuMemFree_v2(h->address) == 0);
    } else {
        // The program puts its free behind all work on the memory: in the same stream, or having waited.
        const stub_point now = stub_now(streams[h->which]);
        if (h->stream != now.stream) stub_finish_all();
        if (is_placed(h->address)) {
            CHECK(freed_count < FREED);
            list_of_freed[freed_count++] = (freed){h->address, h->size, now};
        }
        CHECK(cuda->cuMemFreeAsync(h->address, streams[h->which]) == 0);
    }
    h->address = 0;
}

static void renew(const api *cuda, int which) {
    if (streams[which] != NULL) CHECK(cuda->cuStreamDestroy_v2(streams[which]) == 0);
    CHECK(cuda->cuStreamCreate(&streams[which], 1) == 0);
}

static void something_else(const api *cuda, int which) {
    static const char *const calls[] = {"cuMemCreate", "cuMemMap", "cuMemUnmap", "cuEventCreate", "cuEventQuery"};
    void *pool;
    uint64_t threshold = below(3) == 0 ? 0 : below(2) ? UINT64_MAX : 16 * MIB;
    CHECK(cuda->cuDeviceGetDefaultMemPool(&pool, 0) == 0);
    switch (below(7)) {
        case 0: CHECK(cuda->cuStreamSynchronize(streams[which]) == 0); break;
        case 1: CHECK(cuda->cuCtxSynchronize() == 0); break;
        case 2: CHECK(cuda->cuMemPoolSetAttribute(pool, 4, &threshold) == 0); break;
        case 3: CHECK(cuda->cuMemPoolTrimTo(pool, threshold) == 0); break;
        case 4: stub_finish(streams[which]); break;
        case 5: renew(cuda, which); break;
        default: stub_fail(calls[below(5)], 1 + (long)below(3), 2); break;
    }
}

static void random_order(const api *cuda) {
    static held list[HELD];
    const char *const text = getenv("SEED");
    seed = text != NULL ? (unsigned)atoi(text) : 1;
    for (int i = 0; i < STREAMS; ++i) renew(cuda, i);
    for (int step = 0; step < STEPS; ++step) {
        held *const h = &list[below(HELD)];
        const int which = (int)below(STREAMS);
        if (below(10) == 0) something_else(cuda, which);
        else if (h->address == 0) take(cuda, list, h, which);
        else give(cuda, h);
        CHECK(stub_violations() == 0);
    }
    static const char *const failing[] = {"cuMemCreate", "cuMemMap", "cuMemUnmap", "cuEventCreate", "cuEventQuery"};
    for (int i = 0; i < 5; ++i) stub_fail(failing[i], 0, 0);
    check_nothing_left(cuda);
}

const scenario scenarios_of_random_order[] = {{"random_order", random_order}, {NULL, NULL}};
