// Stream-ordered allocation where something is in its way: captures, other contexts, refusals, no memory, many streams.
#include <pthread.h>
#include <string.h>

#include "program.h"

// The driver waits for nothing in any of these, and so a kernel that waits for the host must not be waited for.
static void waits_for_nothing(const api *cuda) {
    void *const stream = new_stream(cuda);
    set_threshold(cuda, KEEP_ALL);
    const uint64_t large = ordered(cuda, 4 * MIB, stream), small = ordered(cuda, 700, stream);
    const uint64_t plainly = allocated(cuda, 6 * MIB), small_plainly = allocated(cuda, 800);
    const long contexts = stub_calls("cuCtxSynchronize"), streams = stub_calls("cuStreamSynchronize");
    stub_work(stream, plainly);
    stub_work(stream, small_plainly);
    CHECK(cuda->cuMemFree_v2(large) == 0 && cuda->cuMemFree_v2(small) == 0);
    CHECK(cuda->cuMemFreeAsync(plainly, stream) == 0 && cuda->cuMemFreeAsync(small_plainly, stream) == 0);
    CHECK(stub_calls("cuCtxSynchronize") == contexts && stub_calls("cuStreamSynchronize") == streams);
    // cuMemFree is the program's word that nothing uses it: any stream may have it.
    CHECK(ordered(cuda, 4 * MIB, NULL) == large && ordered(cuda, 700, NULL) == small);
    CHECK(stub_count("mappings") == 4);
    stub_finish(stream);
    // What cuMemAlloc had allocated does not stay, whatever the threshold.
    CHECK(cuda->cuStreamSynchronize(stream) == 0);
    CHECK(stub_count("mappings") == 3 && stub_violations() == 0);
    check_nothing_left(cuda);
}

// A free of ours in a stream that is captured is refused, as that of any memory that no graph allocated. In another
// stream it goes on, and breaks nothing.
static void while_captured(const api *cuda) {
    void *const captured = new_stream(cuda), *const stream = new_stream(cuda), *graph;
    const uint64_t first = ordered(cuda, 4 * MIB, stream), second = ordered(cuda, 4 * MIB, stream);
    uint64_t third = 0;
    stub_work(stream, first);
    CHECK(cuda->cuStreamBeginCapture_v2(captured, 0) == 0);
    CHECK(cuda->cuMemFreeAsync(first, captured) == 1);
    CHECK(cuda->cuMemFreeAsync(first, stream) == 0);
    CHECK(cuda->cuMemFree_v2(second) == 0);
    CHECK(cuda->cuMemAllocAsync(&third, 4 * MIB, captured) == 0 && !is_placed(third));
    CHECK(stub_violations() == 0);  // the captured stream was asked nothing
    CHECK(cuda->cuMemFree_v2(third) == 0);
    // Not in the capture: the stream is another one.
    CHECK(cuda->cuMemAllocAsync(&third, 4 * MIB, stream) == 0 && is_placed(third));
    CHECK(stub_violations() == 0);
    CHECK(cuda->cuMemFreeAsync(third, stream) == 0);
    CHECK(cuda->cuStreamEndCapture(captured, &graph) == 0);
    CHECK(cuda->cuCtxSynchronize() == 0);
    CHECK(stub_count("mappings") == 0 && stub_violations() == 0);
    check_nothing_left(cuda);
}

// Where memory is short, what is over goes back, and what is not is waited for.
static _Atomic long asked_before;
static void *finishes_when_asked(void *argument) {
    (void)argument;
    while (stub_calls("cuEventQuery") < asked_before + 5) continue;
    stub_finish_all();
    return NULL;
}
static void makes_room_in_order(const api *cuda) {
    void *const stream = new_stream(cuda);
    pthread_t thread;
    uint64_t address = 0;
    unsigned long long handle;
    set_threshold(cuda, KEEP_ALL);
    for (int way = 0; way < 4; ++way) {
        const uint64_t freed = ordered(cuda, 4 * MIB, stream);
        CHECK(stub_count("mappings") == 1);
        if (way > 0) stub_work(stream, freed);
        CHECK(cuda->cuMemFreeAsync(freed, stream) == 0);
        asked_before = stub_calls("cuEventQuery");
        if (way > 0) CHECK(pthread_create(&thread, NULL, finishes_when_asked, NULL) == 0);
        stub_fail("cuMemCreate", 1, 2);
        stub_fail("cuMemAlloc_v2", 1, 2);
        stub_fail("cuMemAllocAsync", 1, 2);
        stub_fail("cuMemAllocAsync_ptsz", 1, 2);
        // At first the region can be made after all, then the driver must serve it, or the program's own call is tried again.
        if (way == 0) CHECK(cuda->cuMemAlloc_v2(&address, 64 * MIB) == 0 && is_placed(address));
        if (way == 1) CHECK(cuda->cuMemAlloc_v2(&address, 64 * MIB) == 0);
        if (way == 2) CHECK(cuda->cuMemAllocAsync(&address, 64 * MIB, stream) == 0);
        if (way == 3) CHECK(cuda->cuMemCreate(&handle, 64 * MIB, NULL, 0) == 0);
        if (way > 0) CHECK(pthread_join(thread, NULL) == 0);
        CHECK(stub_violations() == 0);
        if (way < 3) CHECK(cuda->cuMemFree_v2(address) == 0);
        stub_fail("cuMemAlloc_v2", 0, 0);
        stub_fail("cuMemAllocAsync", 0, 0);
        stub_fail("cuMemAllocAsync_ptsz", 0, 0);
        void *pool;
        CHECK(cuda->cuDeviceGetDefaultMemPool(&pool, 0) == 0 && cuda->cuMemPoolTrimTo(pool, 0) == 0);
        CHECK(stub_count("mappings") == 0);
    }
    CHECK(cuda->cuDevicePrimaryCtxReset_v2(0) == 0);
    CHECK(stub_count("handles") == 1);  // the program's own
}

// Without an event a free has no end that could be seen; the memory stays until a synchronisation shows it.
static void refused(const api *cuda) {
    void *const stream = new_stream(cuda);
    const uint64_t first = ordered(cuda, 4 * MIB, stream), second = ordered(cuda, 6 * MIB, stream);
    stub_work(stream, first);
    stub_fail("cuEventCreate", 1, 2);
    CHECK(cuda->cuMemFreeAsync(first, stream) == 0);
    stub_fail("cuEventRecord", 1, 700);
    CHECK(cuda->cuMemFreeAsync(second, stream) == 700);  // and the program has it still
    memset((void *)(uintptr_t)second, 1, 6 * MIB);
    stub_finish(stream);
    CHECK(ordered(cuda, 4 * MIB, NULL) != first);
    stub_fail("cuEventQuery", 1, 700);
    CHECK(cuda->cuMemFreeAsync(second, stream) == 0);
    CHECK(ordered(cuda, 6 * MIB, NULL) != second);
    CHECK(stub_count("mappings") == 4);
    CHECK(cuda->cuCtxSynchronize() == 0);
    CHECK(stub_count("mappings") == 2 && stub_violations() == 0);
    check_nothing_left(cuda);
}

// Streams of other contexts than the current one, or than the device's primary one, with which the driver's pools live.
static void elsewhere(const api *cuda) {
    void *primary = NULL, *own = NULL;
    uint64_t address = 0;
    cuCtxGetCurrent(&primary);
    void *const stream = new_stream(cuda);
    const uint64_t first = ordered(cuda, 4 * MIB, stream), second = ordered(cuda, 4 * MIB, stream);
    CHECK(cuCtxCreate_v2(&own, 0, 0) == 0);
    void *const stream_of_own = new_stream(cuda);
    CHECK(cuda->cuMemAllocAsync(&address, 4 * MIB, stream) == 0 && !is_placed(address));
    CHECK(cuda->cuMemFreeAsync(address, stream) == 0);
    CHECK(cuda->cuMemAllocAsync(&address, 4 * MIB, stream_of_own) == 0 && !is_placed(address));
    CHECK(cuda->cuMemFreeAsync(address, stream_of_own) == 0);
    // Freed behind the work of a stream that has no events with us.
    stub_work(stream_of_own, first);
    const stub_point before = stub_now(stream_of_own);
    CHECK(cuda->cuMemFreeAsync(first, stream_of_own) == 0 && stub_is_past(before));
    const uint64_t in_own = allocated(cuda, 6 * MIB);
    stub_work(stream_of_own, in_own);
    CHECK(cuda->cuMemFreeAsync(in_own, stream_of_own) == 0);
    CHECK(cuda->cuCtxDestroy_v2(own) == 0);
    CHECK(cuCtxSetCurrent(primary) == 0);
    CHECK(cuda->cuCtxSynchronize() == 0);
    CHECK(stub_count("mappings") == 1 && stub_violations() == 0);
    CHECK(cuda->cuMemFreeAsync(second, stream) == 0);
    // What was freed and what was not go with the context.
    CHECK(ordered(cuda, 100, stream) != 0);
    CHECK(cuda->cuDevicePrimaryCtxReset_v2(0) == 0);
    CHECK(stub_count("mappings") == 0);
    CHECK(cuDevicePrimaryCtxRetain(&primary, 0) == 0 && cuCtxSetCurrent(primary) == 0);
    void *const later = new_stream(cuda);
    const uint64_t third = ordered(cuda, 4 * MIB, later);
    CHECK(cuda->cuMemFreeAsync(third, later) == 0);
    CHECK(ordered(cuda, 4 * MIB, later) == third);
    check_nothing_left(cuda);
}

// A program that makes a new stream each time, and frees in it memory of a size that never comes again.
static void many_streams(const api *cuda) {
    enum { COUNT = 45, MARKS = 8, RECORDS = 32 };
    size_t size = 16 * MIB;
    set_threshold(cuda, KEEP_ALL);
    CHECK(ordered(cuda, (size_t)95 << 30, NULL) != 0);  // so much may be held
    for (int i = 0; i < COUNT; ++i, size += size / 7) {
        void *const stream = new_stream(cuda);
        for (int k = 0; k < 2 * MARKS; ++k) {
            const uint64_t address = ordered(cuda, size, stream);
            stub_work(stream, address);
            CHECK(cuda->cuMemFreeAsync(address, stream) == 0);
        }
        CHECK(cuda->cuStreamDestroy_v2(stream) == 0);
        stub_finish_all();
    }
    CHECK(stub_count("mappings") == COUNT + 1 && stub_violations() == 0);
    CHECK(stub_calls("cuEventCreate") <= (RECORDS + 1) * MARKS);
    check_nothing_left(cuda);
}

static void *worker(void *argument) {
    const api *const cuda = argument;
    static _Atomic unsigned seeds;
    unsigned seed = ++seeds;
    void *context;
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    static void *_Atomic shared;
    void *const own = new_stream(cuda);
    if (shared == NULL) shared = own;
    uint64_t held[8] = {0};
    for (int i = 0; i < 500; ++i) {
        const int at = rand_r(&seed) % 8;
        void *const stream = rand_r(&seed) % 3 ? own : shared;
        if (rand_r(&seed) % 50 == 0) CHECK(cuda->cuStreamSynchronize(stream) == 0);
        if (held[at] != 0) {
            stub_work(stream, held[at]);
            CHECK(*(unsigned char *)(uintptr_t)held[at] == at);
            CHECK((rand_r(&seed) % 8 ? cuda->cuMemFreeAsync(held[at], stream) : cuda->cuMemFree_v2(held[at])) == 0);
            held[at] = 0;
        } else {
            CHECK(cuda->cuMemAllocAsync(&held[at], 1 + (size_t)rand_r(&seed) % (6 * MIB), stream) == 0);
            *(unsigned char *)(uintptr_t)held[at] = (unsigned char)at;
        }
    }
    stub_finish_all();
    return NULL;
}

static void threads_in_order(const api *cuda) {
    pthread_t threads[6];
    for (int i = 0; i < 6; ++i) CHECK(pthread_create(&threads[i], NULL, worker, (void *)(uintptr_t)cuda) == 0);
    for (int i = 0; i < 6; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(cuda->cuDevicePrimaryCtxReset_v2(0) == 0);
    CHECK(stub_count("mappings") == 0 && stub_count("handles") == 0);
}

const scenario scenarios_of_order_edges[] = {
    {"waits_for_nothing", waits_for_nothing},
    {"while_captured", while_captured},
    {"makes_room_in_order", makes_room_in_order},
    {"refused", refused},
    {"elsewhere", elsewhere},
    {"many_streams", many_streams},
    {"threads_in_order", threads_in_order},
    {NULL, NULL},
};
