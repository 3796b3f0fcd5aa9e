// Allocations that stay plain, and failures on the way to a region.
#include <pthread.h>
#include <string.h>

#include "program.h"

static void plain(const api *cuda, size_t size) {
    const uint64_t address = allocated(cuda, size);
    CHECK(!is_placed(address));
    CHECK(cuda->cuMemFree_v2(address) == 0);
}

// The environment makes everything plain (several devices, a device that lacks something, no UVM, switched off).
static void all_plain(const api *cuda) {
    for (int i = 0; i < 40; ++i) {
        plain(cuda, 100);
        plain(cuda, 4 * MIB);
    }
    CHECK(stub_count("armed") == 0);
    check_nothing_left(cuda);
}

// Two devices are visible. With one in use memory is placed; from the second one's context on it is plain, and what is there
// already is opened to it, as plain memory would be to a peer.
static void second_device(const api *cuda, int (*use)(void **)) {
    void *first, *second = NULL;
    cuCtxGetCurrent(&first);
    const uint64_t large = allocated(cuda, 4 * MIB), small = allocated(cuda, 100);
    const uint64_t in_order = ordered(cuda, 4 * MIB, NULL);
    CHECK(is_placed(large) && is_placed(small) && is_placed(in_order));
    CHECK(stub_reaches(0, large) && !stub_reaches(1, large) && !stub_reaches(1, small));
    CHECK(use(&second) == 0);
    CHECK(stub_reaches(1, large) && stub_reaches(1, small) && stub_reaches(1, in_order) && stub_reaches(0, large));
    plain(cuda, 4 * MIB);
    CHECK(cuCtxSetCurrent(second) == 0);
    plain(cuda, 4 * MIB);
    CHECK(cuda->cuMemFree_v2(large) == 0);
    CHECK(cuCtxSetCurrent(first) == 0);
    CHECK(cuda->cuMemFree_v2(small) == 0 && cuda->cuMemFreeAsync(in_order, NULL) == 0);
    CHECK(cuda->cuCtxSynchronize() == 0);
    check_nothing_left(cuda);
}

static int primary_of_second(void **context) { return cuDevicePrimaryCtxRetain(context, 1); }
static int new_on_second(void **context) { return cuCtxCreate_v2(context, 0, 1); }
static int newest_on_second(void **context) { return cuCtxCreate_v4(context, NULL, 0, 1); }
static void second_primary(const api *cuda) { second_device(cuda, primary_of_second); }
static void second_context(const api *cuda) { second_device(cuda, new_on_second); }
static void second_newest(const api *cuda) { second_device(cuda, newest_on_second); }

// The other device's context is there before anything is allocated.
static void used_before(const api *cuda) {
    void *first, *second;
    cuCtxGetCurrent(&first);
    CHECK(cuDevicePrimaryCtxRetain(&second, 1) == 0);
    plain(cuda, 4 * MIB);
    CHECK(cuCtxSetCurrent(second) == 0);
    plain(cuda, 4 * MIB);
    CHECK(cuCtxSetCurrent(first) == 0);
    check_nothing_left(cuda);
}

// What the driver says of an allocation, to a thread of that mode, it says with the preload as well, and the capture breaks.
static void refuses(const api *cuda, int mode, void *stream) {
    uint64_t address = 0;
    size_t pitch;
    void *graph;
    int before = mode;
    CHECK(cuThreadExchangeStreamCaptureMode(&before) == 0);
    CHECK(cuda->cuMemAlloc_v2(&address, 4 * MIB) == 900 && cuda->cuMemAlloc_v2(&address, 100) == 900);
    CHECK(cuda->cuMemAllocPitch_v2(&address, &pitch, 5000, 4, 4) == 900 && address == 0);
    CHECK(cuThreadExchangeStreamCaptureMode(&before) == 0 && before == mode);
    CHECK(cuda->cuStreamEndCapture(stream, &graph) == 901);
}

// One that the driver lets the thread make is placed, and breaks nothing; nor does the thread's mode change.
static void lets(const api *cuda, int mode) {
    int before = mode;
    CHECK(cuThreadExchangeStreamCaptureMode(&before) == 0);
    const uint64_t large = allocated(cuda, 4 * MIB), small = allocated(cuda, 100);
    CHECK(is_placed(large) && is_placed(small) && stub_violations() == 0);
    CHECK(cuda->cuMemFree_v2(large) == 0 && cuda->cuMemFree_v2(small) == 0);
    CHECK(cuThreadExchangeStreamCaptureMode(&before) == 0 && before == mode);
}

typedef struct {
    const api *cuda;
    void *context, *stream;
    int mode;
    bool ends;
} other_capture;

static void *captures_elsewhere(void *argument) {
    const other_capture *const c = argument;
    void *graph;
    CHECK(cuCtxSetCurrent(c->context) == 0);
    if (!c->ends) CHECK(c->cuda->cuStreamBeginCapture_v2(c->stream, c->mode) == 0);
    else CHECK(c->cuda->cuStreamEndCapture(c->stream, &graph) == 0);
    return NULL;
}

static void elsewhere(other_capture c, bool ends) {
    pthread_t thread;
    c.ends = ends;
    CHECK(pthread_create(&thread, NULL, captures_elsewhere, &c) == 0 && pthread_join(thread, NULL) == 0);
}

// In each mode of the capture and of the thread, in the thread's own captures and in another one's.
static void capture_modes(const api *cuda) {
    enum { GLOBAL, THREAD, RELAXED };
    void *stream, *graph;
    other_capture other = {.cuda = cuda};
    cuCtxGetCurrent(&other.context);
    CHECK(cuda->cuStreamCreate(&stream, 1) == 0 && cuda->cuStreamCreate(&other.stream, 1) == 0);
    for (int capture = GLOBAL; capture <= RELAXED; ++capture) {
        for (int thread = GLOBAL; thread <= RELAXED; ++thread) {
            CHECK(cuda->cuStreamBeginCapture_v2(stream, capture) == 0);
            if (thread == RELAXED || capture == RELAXED) {
                lets(cuda, thread);
                CHECK(cuda->cuStreamEndCapture(stream, &graph) == 0);
            } else {
                refuses(cuda, thread, stream);
            }
            other.mode = capture;
            elsewhere(other, false);
            if (thread == GLOBAL && capture == GLOBAL) refuses(cuda, thread, other.stream);
            else lets(cuda, thread);
            if (thread != GLOBAL || capture != GLOBAL) elsewhere(other, true);
        }
    }
    // As without a mode.
    CHECK(cuStreamBeginCapture(stream) == 0);
    lets(cuda, RELAXED);
    refuses(cuda, THREAD, stream);
    // The driver that cannot tell a thread's mode is asked itself.
    CHECK(cuda->cuStreamBeginCapture_v2(stream, RELAXED) == 0);
    stub_fail("cuThreadExchangeStreamCaptureMode", 1, 1);
    plain(cuda, 4 * MIB);
    CHECK(cuda->cuStreamEndCapture(stream, &graph) == 0);
    // What was freed during captures goes with the next one.
    CHECK(cuda->cuMemFree_v2(allocated(cuda, 4 * MIB)) == 0);
    check_nothing_left(cuda);
}

static void capture(const api *cuda) {
    void *stream, *graph;
    CHECK(cuda->cuStreamCreate(&stream, 1) == 0);
    const uint64_t large = allocated(cuda, 4 * MIB), small = allocated(cuda, 4096);
    CHECK(cuda->cuStreamBeginCapture_v2(stream, 2) == 0);
    CHECK(cuda->cuMemFree_v2(large) == 0 && cuda->cuMemFree_v2(small) == 0);
    CHECK(cuda->cuMemFree_v2(large) == 1 && cuda->cuMemFree_v2(small) == 1);
    CHECK(stub_count("mappings") == 2);  // put off: waiting would break the capture
    CHECK(cuda->cuStreamEndCapture(stream, &graph) == 0);
    const uint64_t later = allocated(cuda, 8 * MIB);
    CHECK(is_placed(later));
    CHECK(stub_count("mappings") == 2);  // the new one, and the slab
    CHECK(cuda->cuMemFree_v2(later) == 0);
    // A capture that could not begin is none; one that was forgotten ends with its stream.
    stub_fail("cuStreamBeginCapture_v2", 1, 1);
    stub_fail("cuStreamBeginCapture_v2_ptsz", 1, 1);
    CHECK(cuda->cuStreamBeginCapture_v2(stream, 0) == 1);
    CHECK(is_placed(allocated(cuda, 4 * MIB)));
    CHECK(cuda->cuStreamBeginCapture_v2(stream, 0) == 0);
    uint64_t none;
    CHECK(cuda->cuMemAlloc_v2(&none, 4 * MIB) == 900);
    CHECK(cuda->cuStreamDestroy_v2(stream) == 0);
    CHECK(is_placed(allocated(cuda, 4 * MIB)));
    check_nothing_left(cuda);
}

static void green(const api *cuda) {
    void *green_context, *primary;
    cuCtxGetCurrent(&primary);
    CHECK(cuda->cuGreenCtxCreate(&green_context, NULL, 0, 0) == 0);
    CHECK(is_placed(allocated(cuda, 4 * MIB)));
    CHECK(cuCtxSetCurrent(green_context) == 0);
    plain(cuda, 4 * MIB);
    CHECK(cuCtxSetCurrent(primary) == 0);
    CHECK(cuda->cuCtxDestroy_v2(green_context) == 0);
    check_nothing_left(cuda);
}

// Each driver call of our own fails once: the program gets its memory all the same, and nothing stays behind.
static void failures(const api *cuda) {
    static const char *const calls[] = {
        "cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap",
        "cuMemSetAccess", "cuMemGetAllocationGranularity", "cuMemGetInfo_v2", "cuCtxGetCurrent", "cuCtxGetDevice",
        "cuDeviceGetCount", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxGetState",
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; ++i) {
        for (long nth = 1; nth <= 4; ++nth) {
            static const size_t sizes[] = {100, 4 * MIB, 6 * MIB + 1, 4 * MIB, MIB};
            uint64_t addresses[5];
            stub_fail(calls[i], nth, 2);
            for (int k = 0; k < 5; ++k) addresses[k] = allocated(cuda, sizes[k]);
            for (int k = 0; k < 5; ++k) {
                const int result = cuda->cuMemFree_v2(addresses[k]);
                // The context is asked for its work's end; what it says is passed on, and the free can be repeated.
                if (result != 0) CHECK(strcmp(calls[i], "cuCtxGetCurrent") == 0 && cuda->cuMemFree_v2(addresses[k]) == 0);
            }
            stub_fail(calls[i], 0, 0);
        }
        // One allocation more, and what was put off is done.
        CHECK(cuda->cuMemFree_v2(allocated(cuda, 2 * MIB)) == 0);
        CHECK(stub_count("mappings") <= 1 && stub_count("handles") <= 1 && stub_count("plain") == 0);
    }
    check_nothing_left(cuda);
}

static void out_of_memory(const api *cuda) {
    uint64_t address = 0;
    stub_set_free(700 * MIB);
    CHECK(cuda->cuMemAlloc_v2(&address, 800 * MIB) == 2);
    CHECK(address == 0);
    CHECK(cuda->cuMemFree_v2(allocated(cuda, 100)) == 0);
    CHECK(cuda->cuMemAlloc_v2(&address, (size_t)1 << 60) == 2);
    CHECK(cuda->cuMemAlloc_v2(&address, SIZE_MAX) == 2);
    CHECK(cuda->cuMemAlloc_v2(&address, 0) == 1);
    CHECK(cuda->cuMemAlloc_v2(NULL, 4 * MIB) == 1);
    check_nothing_left(cuda);
}

// A failing plain allocation is tried again after what we hold without need was given back: an empty slab.
static void makes_room(const api *cuda) {
    CHECK(cuda->cuMemFree_v2(allocated(cuda, 100)) == 0);
    CHECK(stub_count("mappings") == 1);
    stub_fail("cuMemCreate", 1, 2);
    stub_fail("cuMemAlloc_v2", 1, 2);
    const uint64_t address = allocated(cuda, 64 * MIB);
    CHECK(stub_count("mappings") == 0);
    CHECK(cuda->cuMemFree_v2(address) == 0);
    check_nothing_left(cuda);
}

// Armed zones never exceed a quarter of what the card has over 512 MiB; beyond, memory is plain. When less is free,
// zones go.
static void limit(const api *cuda) {
    enum { COUNT = 200 };
    static uint64_t addresses[COUNT];
    const size_t free_bytes = (size_t)4608 * MIB;
    stub_set_free(free_bytes);
    int placed = 0;
    for (int i = 0; i < COUNT; ++i) {
        addresses[i] = allocated(cuda, 2 * MIB);
        placed += is_placed(addresses[i]);
        CHECK(stub_count("armed") <= (long)(1024 * MIB));
    }
    CHECK(placed > 20 && placed < COUNT);
    stub_set_free((size_t)1536 * MIB);
    CHECK(cuda->cuMemFree_v2(allocated(cuda, 2 * MIB)) == 0);
    CHECK(stub_count("armed") <= (long)(256 * MIB));
    for (int i = 0; i < COUNT; ++i) {
        CHECK(*(unsigned char *)(uintptr_t)addresses[i] == 0x5a);
        CHECK(cuda->cuMemFree_v2(addresses[i]) == 0);
    }
    check_nothing_left(cuda);
}

const scenario scenarios_of_fallback[] = {
    {"all_plain", all_plain},
    {"capture", capture}, {"capture_modes", capture_modes},
    {"second_primary", second_primary}, {"second_context", second_context}, {"second_newest", second_newest},
    {"used_before", used_before},     {"green", green},   {"failures", failures},
    {"out_of_memory", out_of_memory}, {"makes_room", makes_room}, {"limit", limit},
    {NULL, NULL},
};
