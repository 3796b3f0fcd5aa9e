// A random program, checked against a model of what it holds: contents, ranges, answers. SEED in the environment.
#include <string.h>

#include "program.h"

enum { HELD = 48, STEPS = 3000 };

typedef struct {
    uint64_t address;
    size_t size;
    unsigned char mark;
} held;

static unsigned seed;

static size_t below(size_t most) { return (size_t)(((uint64_t)rand_r(&seed) << 16 ^ (uint64_t)rand_r(&seed)) % most); }

static size_t some_size(void) {
    switch (below(4)) {
        case 0: return 1 + below(3000);
        case 1: return 1 + below(MIB);
        case 2: return MIB + below(3 * MIB);
        default: return (1 + below(8)) * 2 * MIB;
    }
}

// Its first and last words, and one in between.
static void mark(const held *h) {
    unsigned char *const bytes = (unsigned char *)(uintptr_t)h->address;
    bytes[0] = bytes[h->size / 2] = bytes[h->size - 1] = h->mark;
}

static void check(const api *cuda, const held *h) {
    const unsigned char *const bytes = (const unsigned char *)(uintptr_t)h->address;
    CHECK(bytes[0] == h->mark && bytes[h->size / 2] == h->mark && bytes[h->size - 1] == h->mark);
    uint64_t start = 0;
    size_t size = 0;
    CHECK(cuda->cuMemGetAddressRange_v2(&start, &size, h->address + below(h->size)) == 0);
    CHECK(start == h->address && (is_placed(h->address) ? size == h->size : size >= h->size));
}

static void check_apart(const held *list, const held *one) {
    for (int i = 0; i < HELD; ++i)
        if (list[i].address != 0 && &list[i] != one)
            CHECK(one->address + one->size <= list[i].address || list[i].address + list[i].size <= one->address);
}

static const char *const calls[] = {"cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate",    "cuMemRelease",
                                    "cuMemMap",            "cuMemUnmap",       "cuMemSetAccess", "cuMemGetInfo_v2"};
enum { CALLS = sizeof calls / sizeof *calls };

static void fail_something(void) { stub_fail(calls[below(CALLS)], 1 + (long)below(3), below(2) ? 2 : 999); }

static void random_steps(const api *cuda) {
    static held list[HELD];
    const char *const text = getenv("SEED");
    seed = text != NULL ? (unsigned)atoi(text) : 1;
    int capturing = 0;
    void *stream, *graph;
    CHECK(cuda->cuStreamCreate(&stream, 1) == 0);
    for (int step = 0; step < STEPS; ++step) {
        held *const h = &list[below(HELD)];
        switch (below(40)) {
            case 0: fail_something(); break;
            case 1: stub_set_free((1 + below(64)) * 512 * MIB); break;
            case 2:
                if (!capturing) capturing = cuda->cuStreamBeginCapture_v2(stream, 2) == 0;
                break;
            case 3:
            case 4:
                if (capturing) capturing = cuda->cuStreamEndCapture(stream, &graph) != 0;
                break;
            case 5:
                for (int i = 0; i < HELD; ++i)
                    if (list[i].address != 0) stub_work(NULL, list[i].address);
                break;
            default:
                if (h->address == 0) {
                    h->size = some_size();
                    h->mark = (unsigned char)below(256);
                    if (cuda->cuMemAlloc_v2(&h->address, h->size) != 0) {
                        h->address = 0;  // only when less is free than it takes
                        break;
                    }
                    check_apart(list, h);
                    mark(h);
                } else {
                    check(cuda, h);
                    CHECK((below(3) ? cuda->cuMemFree_v2(h->address) : cuda->cuMemFreeAsync(h->address, NULL)) == 0);
                    h->address = 0;
                }
        }
    }
    if (capturing) CHECK(cuda->cuStreamEndCapture(stream, &graph) == 0);
    for (int i = 0; i < HELD; ++i) {
        if (list[i].address == 0) continue;
        check(cuda, &list[i]);
        CHECK(cuda->cuMemFree_v2(list[i].address) == 0);
    }
    // From here on nothing is refused; what was put off is done with the next call.
    for (int i = 0; i < CALLS; ++i) stub_fail(calls[i], 0, 0);
    CHECK(cuda->cuMemFree_v2(allocated(cuda, 2 * MIB)) == 0);
    CHECK(stub_count("mappings") <= 1 && stub_count("handles") <= 1 && stub_count("plain") == 0);
    check_nothing_left(cuda);
}

const scenario scenarios_at_random[] = {{"random", random_steps}, {NULL, NULL}};
