// An unmodified CUDA program: threads with streams of their own, which check everything that they get back.
//
//   program SEED THREADS OPERATIONS WHEN IMAGE [REQUESTS]
//
// WHEN: idle (the fault comes while no stream has work), any (at any operation), late (at any one behind the middle), never;
// culprit (late, by a kernel of its own); move (it is moved, so often as REQUESTS says, or until it has moved, and there is no fault);
// both (it is moved, and the fault comes at any operation); other (likewise, and it is the other lane's); rounds (so many times as
// REQUESTS says, one after the other or two at once, it is moved, or the lane faults on which it is, and serves again).
//
// Prints "survived", "lost CODE" if a call failed with CODE, or "WRONG ..." and ends with 1 if anything was not as it would have
// been. The fault is a file in the pipe directory.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "asks.h"
#include "looks.h"

typedef unsigned long long address;
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuCtxGetCurrent(void **);
extern int cuStreamCreate(void **, unsigned), cuStreamSynchronize(void *), cuStreamQuery(void *), cuStreamDestroy_v2(void *);
extern int cuEventCreate(void **, unsigned), cuEventRecord(void *, void *), cuEventSynchronize(void *), cuEventQuery(void *), cuEventDestroy_v2(void *);
extern int cuStreamWaitEvent(void *, void *, unsigned);
extern int cuModuleLoadData(void **, const void *), cuModuleGetFunction(void **, void *, const char *), cuFuncSetAttribute(void *, int, int), cuFuncGetAttribute(int *, int, void *);
extern int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
extern int cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **), cuGraphInstantiateWithFlags(void **, void *, unsigned long long);
extern int cuGraphLaunch(void *, void *), cuGraphDestroy(void *);
extern int cuMemAllocAsync(address *, size_t, void *), cuMemFreeAsync(address, void *), cuThreadExchangeStreamCaptureMode(int *);
extern int cuMemAlloc_v2(address *, size_t), cuMemFree_v2(address), cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *);
extern int cuMemcpyHtoDAsync_v2(address, const void *, size_t, void *), cuMemcpyDtoHAsync_v2(void *, address, size_t, void *), cuMemcpyDtoH_v2(void *, address, size_t);
extern int cuMemcpyHtoD_v2(address, const void *, size_t), cuMemcpyDtoDAsync_v2(address, address, size_t, void *), cuMemcpyAsync(address, address, size_t, void *);
extern int cuMemsetD8Async(address, unsigned char, size_t, void *), cuMemsetD32Async(address, unsigned, size_t, void *);
extern int cuCtxSynchronize(void), cuMemAllocManaged(address *, size_t, unsigned), cuPointerGetAttribute(void *, int, address);

enum { ELEMENTS = 1024, BYTES = 4 * ELEMENTS, SLOTS = 3 };

static void *context, *affine, *combine, *count, *trap;
static int threads, operations;
static bool at_idle, at_any, at_late, is_culprit, moves, is_of_other, in_rounds;
static int requests = 1;
static _Atomic int answered;  // requests
static pthread_barrier_t barrier;
static _Atomic int lost;
static _Atomic bool faulted;
static _Atomic uint32_t counted = 41;

static void wrong(const char *what, long where) {
    printf("WRONG %s at %ld\n", what, where);
    fflush(stdout);
    _exit(1);
}

// A failed call ends the thread's work.
#define DO(call)                                  \
    do {                                          \
        const int result_ = (call);               \
        if (result_ != 0) {                       \
            atomic_store(&lost, result_);         \
            return;                               \
        }                                         \
    } while (0)

typedef struct {
    unsigned seed;
    void *stream, *side, *event;
    address buffer, other;
    uint32_t model[ELEMENTS], other_model[ELEMENTS];
    uint32_t *pinned;
    // Copies to the host that are not waited for at once, and what they will give.
    uint32_t *slots, expected[SLOTS][ELEMENTS];
    int used;
    void *instance;  // of a graph
} worker;

static uint32_t next(worker *w) { return (uint32_t)rand_r(&w->seed) ^ ((uint32_t)rand_r(&w->seed) << 16); }

static void tell_lane(const char *what) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv(is_of_other ? "MPSGUARD_SECOND_PIPE_DIRECTORY" : "CUDA_MPS_PIPE_DIRECTORY"), what);
    close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
}

static void fault(void) {
    tell_lane("fault");
    atomic_store(&faulted, true);
}

static void check(worker *w, const uint32_t *got) {
    for (long i = 0; i < ELEMENTS; ++i)
        if (got[i] != w->model[i]) wrong("content", i);
}

static void launch_on(worker *w, void *kernel, address to, address b, void *stream) {
    const uint32_t factor = next(w) | 1;
    address packed[] = {to, ELEMENTS, factor, b};
    size_t size = sizeof packed;
    void *parameters[] = {&packed[0], &packed[1], &packed[2], &packed[3]}, *extra[] = {(void *)1, packed, (void *)2, &size, NULL};
    uint32_t *const model = to == w->buffer ? w->model : w->other_model;
    const uint32_t *const added = kernel == combine ? to == w->buffer ? w->other_model : w->model : NULL;
    const bool in_one_piece = next(w) % 4 == 0;
    DO(cuLaunchKernel(kernel, 4, 1, 1, 256, 1, 1, 60000, stream, in_one_piece ? NULL : parameters, in_one_piece ? extra : NULL));
    // It has them by now.
    memset(packed, 0, sizeof packed - sizeof *packed);
    for (long i = 0; i < ELEMENTS; ++i) model[i] = model[i] * factor + (added != NULL ? added[i] : (uint32_t)b);
}

static void launch(worker *w) {
    if (next(w) % 2) launch_on(w, affine, w->buffer, next(w), w->stream);
    else launch_on(w, combine, w->buffer, w->other, w->stream);
}

// In another stream, with waits in both directions.
static void launch_beside(worker *w) {
    DO(cuEventRecord(w->event, w->stream));
    DO(cuStreamWaitEvent(w->side, w->event, 0));
    if (next(w) % 2) launch_on(w, affine, w->other, next(w), w->side);
    else launch_on(w, combine, w->other, w->buffer, w->side);
    DO(cuEventRecord(w->event, w->side));
    DO(cuStreamWaitEvent(w->stream, w->event, 0));
}

// In two streams; what it does to the model is done at each launch.
enum { GRAPH_FACTOR = 5, GRAPH_ADDED = 9, GRAPH_SET = 77 };
static void capture(worker *w) {
    void *graph = NULL, *others = NULL;
    address packed[] = {w->buffer, ELEMENTS, GRAPH_FACTOR, GRAPH_ADDED};
    void *parameters[] = {&packed[0], &packed[1], &packed[2], &packed[3]};
    DO(cuStreamCreate(&others, 1));
    DO(cuStreamBeginCapture_v2(w->stream, 1));
    // As PyTorch allocates then.
    int mode = 2;
    address between = 0;
    DO(cuThreadExchangeStreamCaptureMode(&mode));
    DO(cuMemAlloc_v2(&between, next(w) % 2 ? BYTES : 3 << 20));
    DO(cuThreadExchangeStreamCaptureMode(&mode));
    DO(cuLaunchKernel(affine, 4, 1, 1, 256, 1, 1, 60000, w->stream, parameters, NULL));
    DO(cuEventRecord(w->event, w->stream));
    DO(cuStreamWaitEvent(others, w->event, 0));
    DO(cuMemcpyDtoDAsync_v2(between, w->buffer, BYTES, others));
    DO(cuMemcpyDtoDAsync_v2(w->other, between, BYTES, others));
    DO(cuEventRecord(w->event, others));
    DO(cuStreamWaitEvent(w->stream, w->event, 0));
    DO(cuMemsetD32Async(w->buffer, GRAPH_SET, 3, w->stream));
    DO(cuStreamEndCapture(w->stream, &graph));
    DO(cuGraphInstantiateWithFlags(&w->instance, graph, 0));
    DO(cuGraphDestroy(graph));
    DO(cuStreamDestroy_v2(others));
    memset(packed, 0, sizeof packed);
}

static void launch_graph(worker *w) {
    DO(cuGraphLaunch(w->instance, w->stream));
    for (long i = 0; i < ELEMENTS; ++i) w->model[i] = w->model[i] * GRAPH_FACTOR + GRAPH_ADDED;
    memcpy(w->other_model, w->model, BYTES);
    for (long i = 0; i < 3; ++i) w->model[i] = GRAPH_SET;
}

static void set_some(worker *w) {
    const long from = (long)(next(w) % ELEMENTS);
    const uint32_t value = next(w);
    if (next(w) % 2) {
        DO(cuMemsetD32Async(w->buffer + 4 * (address)from, value, (size_t)(ELEMENTS - from), w->stream));
        for (long i = from; i < ELEMENTS; ++i) w->model[i] = value;
    } else {
        DO(cuMemsetD8Async(w->buffer + 4 * (address)from, (unsigned char)value, 4 * (size_t)(ELEMENTS - from), w->stream));
        memset(&w->model[from], (int)(value & 255), 4 * (size_t)(ELEMENTS - from));
    }
}

static void copy_over(worker *w) {
    if (next(w) % 2) DO(cuMemcpyDtoDAsync_v2(w->other, w->buffer, BYTES, w->stream));
    else DO(cuMemcpyAsync(w->other, w->buffer, BYTES, w->stream));
    memcpy(w->other_model, w->model, BYTES);
}

// By memory in stream order, which is used again before the work on it is over.
static void copy_in_order(worker *w) {
    address between = 0;
    DO(cuMemAllocAsync(&between, next(w) % 2 ? BYTES : (3 + next(w) % 3) << 20, w->stream));
    DO(cuMemcpyDtoDAsync_v2(between, w->buffer, BYTES, w->stream));
    DO(cuMemcpyDtoDAsync_v2(w->other, between, BYTES, w->stream));
    DO(cuMemFreeAsync(between, w->stream));
    memcpy(w->other_model, w->model, BYTES);
}

// Of memory that is something else at once: the driver has taken the bytes.
static void write_some(worker *w) {
    uint32_t some[16];
    const long from = (long)(next(w) % (ELEMENTS - 16));
    for (int i = 0; i < 16; ++i) some[i] = w->model[from + i] = next(w);
    DO(cuMemcpyHtoDAsync_v2(w->buffer + 4 * (address)from, some, sizeof some, w->stream));
    memset(some, 0, sizeof some);
}

static void check_slots(worker *w) {
    for (int k = 0; k < w->used; ++k)
        for (long i = 0; i < ELEMENTS; ++i)
            if (w->slots[k * ELEMENTS + i] != w->expected[k][i]) wrong("slot", i);
    // The program uses it for something else.
    memset(w->slots, 0x55, (size_t)SLOTS * BYTES);
    w->used = 0;
}

static void read_later(worker *w) {
    if (w->used == SLOTS) {
        DO(cuStreamSynchronize(w->stream));
        check_slots(w);
    }
    DO(cuMemcpyDtoHAsync_v2(w->slots + w->used * ELEMENTS, w->buffer, BYTES, w->stream));
    memcpy(w->expected[w->used++], w->model, BYTES);
}

// Memory of a short life, with work in it; its addresses are given to others.
static void use_memory(worker *w) {
    address more = 0;
    DO(cuMemAlloc_v2(&more, next(w) % 2 ? 100000 : (3 + next(w) % 3) << 20));
    uint32_t before[ELEMENTS];
    DO(cuMemcpyDtoDAsync_v2(more, w->buffer, BYTES, w->stream));
    memcpy(before, w->model, BYTES);
    launch(w);
    DO(cuMemcpyDtoDAsync_v2(w->other, more, BYTES, w->stream));
    memcpy(w->other_model, before, BYTES);
    if (next(w) % 2) DO(cuStreamSynchronize(w->stream));
    DO(cuMemFree_v2(more));
}

static void write_all(worker *w) {
    for (long i = 0; i < ELEMENTS; ++i) w->pinned[i] = next(w);
    DO(cuMemcpyHtoDAsync_v2(w->buffer, w->pinned, BYTES, w->stream));
    memcpy(w->model, w->pinned, BYTES);
    DO(cuStreamSynchronize(w->stream));
    DO(cuStreamSynchronize(w->side));
}

static void read_all(worker *w) {
    uint32_t got[ELEMENTS];
    if (next(w) % 2) {
        DO(cuMemcpyDtoHAsync_v2(w->pinned, w->buffer, BYTES, w->stream));
        DO(cuStreamSynchronize(w->stream));
        memcpy(got, w->pinned, BYTES);
    } else {
        DO(cuStreamSynchronize(w->stream));
        DO(cuMemcpyDtoH_v2(got, w->buffer, BYTES));
    }
    check(w, got);
}

static void use_event(worker *w) {
    DO(cuEventRecord(w->event, w->stream));
    if (next(w) % 2) DO(cuEventSynchronize(w->event));
    else if (next(w) % 2)
        for (int state = 600; state == 600;) {
            state = cuEventQuery(w->event);
            if (state != 600) DO(state);
        }
}

static void use_others(worker *w) {
    address more = 0;
    void *stream = NULL, *now = NULL, *of = NULL;
    DO(cuMemAlloc_v2(&more, next(w) % 3 ? 100000 : 3 << 20));
    DO(cuPointerGetAttribute(&of, 1, more));
    DO(cuCtxGetCurrent(&now));
    if (now != context || of != context) wrong("context", 0);
    DO(cuStreamCreate(&stream, 1));
    DO(cuStreamSynchronize(stream));
    DO(cuStreamDestroy_v2(stream));
    DO(cuMemFree_v2(more));
}

static void at_barrier(worker *w, bool first) {
    DO(cuStreamSynchronize(w->stream));
    DO(cuStreamSynchronize(w->side));
    pthread_barrier_wait(&barrier);
    if (first) {
        await_looks();
        fault();
    }
    pthread_barrier_wait(&barrier);
}

static void count_one(worker *w) {
    const address n = ELEMENTS, zero = 0;
    void *parameters[] = {&w->buffer, (void *)&n, (void *)&zero, (void *)&zero};
    uint32_t got = 0;
    DO(cuLaunchKernel(count, 1, 1, 1, 1, 1, 1, 0, w->stream, parameters, NULL));
    DO(cuStreamSynchronize(w->stream));
    DO(cuMemcpyDtoH_v2(&got, w->buffer, 4));
    if (got != ++counted) wrong("counter", (long)got);
    w->model[0] = got;
}

// Work comes behind it, and the model of what will be there has an end.
static void launch_trap(worker *w) {
    address none = 0;
    void *parameters[] = {&none, &none, &none, &none};
    DO(cuLaunchKernel(trap, 1, 1, 1, 1, 1, 1, 0, next(w) % 2 ? w->stream : w->side, parameters, NULL));
}

// Before the threads run: while one captures, the others may not allocate.
static void prepare(worker *w) {
    DO(cuStreamCreate(&w->stream, 1));
    DO(cuStreamCreate(&w->side, 1));
    DO(cuEventCreate(&w->event, 2));
    DO(cuMemAlloc_v2(&w->buffer, BYTES));
    DO(cuMemAlloc_v2(&w->other, 3 << 20));  // a mapping of its own
    DO(cuMemHostAlloc((void **)&w->pinned, BYTES, 0));
    DO(cuMemHostAlloc((void **)&w->slots, SLOTS * BYTES, 0));
    capture(w);
}

// One request after the other, each for another share.
static void look_at_answers(void) {
    static int asked;
    static bool stops;
    if (stops) return;
    const int answer = asked > 0 ? move_answer((uint32_t)asked) : 1;
    if (answer == 0) return;
    atomic_store(&answered, asked);
    stops = answer == 2 || asked == requests;
    // The old server has ended this client.
    if (answer == 2 && getenv("ENDED_AFTERWARDS") != NULL) tell_lane("gone");
    if (stops) atomic_store(&answered, requests);
    else {
        ++asked;
        if (!ask_move((uint32_t)asked, asked % 2 ? 2500 : 0)) wrong("request", asked);
    }
}

// How often it has gone over, by what the preload has reported; or had when it moved last.
static int goings_over(bool by_move) {
    static char all[1 << 16];
    const int fd = open(getenv("MPSGUARD_SECOND_REPORT"), O_RDONLY | O_CLOEXEC);
    const ssize_t size = fd >= 0 ? read(fd, all, sizeof all - 1) : 0;
    int found = 0, at_move = 0;
    if (fd >= 0) close(fd);
    all[size > 0 ? size : 0] = '\0';
    for (const char *at = all; (at = strstr(at, "\"outcome\": \"")) != NULL; ++at)
        if (strncmp(at + 12, "taken_over", 10) == 0) ++found;
        else if (strncmp(at + 12, "moved", 5) == 0) at_move = ++found;
    return by_move ? at_move : found;
}

// A lane does that to the drivers that it has, and not to those that come to it later.
static void end_incarnation(int at, const char *what) {
    static int incarnations[2];
    char path[4096], name[32];
    is_of_other = at == 1;
    snprintf(name, sizeof name, incarnations[at] > 0 ? "%s-%d" : "%s", what, incarnations[at]);
    ++incarnations[at];
    snprintf(path, sizeof path, "%s/incarnation.new", getenv(at == 1 ? "MPSGUARD_SECOND_PIPE_DIRECTORY" : "CUDA_MPS_PIPE_DIRECTORY"));
    FILE *const f = fopen(path, "w");
    char to[4096];
    snprintf(to, sizeof to, "%.*s", (int)(strlen(path) - 4), path);
    if (f == NULL || fprintf(f, "%d", incarnations[at]) < 0 || fclose(f) != 0 || rename(path, to) != 0) wrong("incarnation", at);
    tell_lane(name);
}

// The lane at hand faults.
static void fault_in_round(void) {
    end_incarnation(goings_over(false) % 2, "fault");
    atomic_store(&faulted, true);
}

// Returns whether there is no round any more.
static bool look_at_rounds(worker *w) {
    static int rounds, asked, expected;
    static bool moving, faulting;
    static struct timespec since;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const int over = goings_over(false);
    const int answer = moving ? move_answer((uint32_t)asked) : 0;
    // The old server has ended this client, before another driver comes there.
    if (answer == 2 && getenv("ENDED_AFTERWARDS") != NULL) end_incarnation((goings_over(true) - 1) % 2, "gone");
    if (answer != 0) moving = false;
    // One that came in the middle of a move may have been that of the lane that was left.
    if (faulting && (over >= expected || (!moving && now.tv_sec > since.tv_sec + 3))) faulting = false;
    if (rounds == requests) return !moving && !faulting;
    const bool beside = next(w) % 4 == 0;
    if ((moving || faulting) && !(beside && moving != faulting)) return false;
    if (next(w) % 3 != 0 && !(moving || faulting)) return false;
    const bool faults = moving || (!faulting && next(w) % 2 == 0);
    // Mostly where it says that it would live.
    if (faults && !would_live() && next(w) % 64 != 0) return false;
    ++rounds;
    if (faults) {
        faulting = true;
        expected = over + 1;
        since = now;
        fault_in_round();
    } else {
        moving = true;
        ++asked;
        if (!ask_move((uint32_t)asked, asked % 2 ? 2500 : 0)) wrong("request", asked);
    }
    return false;
}

static void work(worker *w, bool first) {
    int end = operations;
    const int half = operations / 2, moment = at_late ? half + (int)(next(w) % (unsigned)(half + 1)) : (int)(next(w) % (unsigned)operations);
    DO(cuCtxSetCurrent(context));
    // The thread's own default stream, of which no other thread can ask.
    if (moves && w->seed % 3 == 0) w->side = (void *)2;
    write_all(w);
    copy_over(w);
    for (int i = 0; i < end && atomic_load(&lost) == 0; ++i) {
        static _Atomic bool rounds_are_over;
        if (in_rounds && first && next(w) % 4 == 0 && look_at_rounds(w)) atomic_store(&rounds_are_over, true);
        if (in_rounds && !atomic_load(&rounds_are_over) && i == end - 1) ++end;
        if (moves && first && i >= (at_any ? moment / 2 : moment)) look_at_answers();
        // Goes on until it has moved, and for a while after that. After a fault nothing answers.
        if (moves && !atomic_load(&faulted) && atomic_load(&answered) < requests && i == end - 1 - half) ++end;
        if (at_idle && i == half) at_barrier(w, first);
        if ((at_any || at_late) && !is_culprit && first && i == moment) fault();
        if (is_culprit && first && i == (moment < operations ? moment : operations - 1)) launch_trap(w);
        // So that epochs come between.
        if (next(w) % 8 == 0) nanosleep(&(struct timespec){.tv_nsec = (long)(next(w) % 4000000)}, NULL);
        switch (next(w) % 17) {
            case 0: write_all(w); break;
            case 1: read_all(w); break;
            case 2: use_event(w); break;
            case 3: use_others(w); break;
            case 4: if (first) count_one(w); break;  // one thread: the counter is not atomic
            case 5: launch_beside(w); break;
            case 6: set_some(w); break;
            case 7: next(w) % 2 ? copy_over(w) : copy_in_order(w); break;
            case 8: write_some(w); break;
            case 9:
            case 10: read_later(w); break;
            case 11: use_memory(w); break;
            case 16: launch_graph(w); break;
            default: launch(w);
        }
    }
    if (atomic_load(&lost) == 0) DO(cuStreamSynchronize(w->stream));
    if (atomic_load(&lost) == 0) DO(cuStreamSynchronize(w->side));
    if (atomic_load(&lost) == 0) check_slots(w);
    if (atomic_load(&lost) == 0) read_all(w);
    if (atomic_load(&lost) == 0) DO(cuMemFreeHost(w->pinned));
}

static void *run(void *argument) {
    worker *const w = argument;
    work(w, w->seed % 1000 == 0);
    return NULL;
}

static void *read_file(const char *path) {
    FILE *const f = fopen(path, "rb");
    char *const room = malloc(1 << 20);
    if (f == NULL || room == NULL || fread(room, 1, 1 << 20, f) == 0) exit(2);
    fclose(f);
    return room;
}

int main(int argc, char **argv) {
    if (argc != 6 && argc != 7) return 2;
    threads = atoi(argv[2]);
    operations = atoi(argv[3]);
    at_idle = strcmp(argv[4], "idle") == 0;
    at_any = strcmp(argv[4], "any") == 0;
    is_culprit = strcmp(argv[4], "culprit") == 0;
    is_of_other = strcmp(argv[4], "other") == 0;
    moves = strcmp(argv[4], "move") == 0 || strcmp(argv[4], "both") == 0 || is_of_other;
    if (strcmp(argv[4], "both") == 0 || is_of_other) at_any = true;
    if (argc == 7) requests = atoi(argv[6]);
    in_rounds = strcmp(argv[4], "rounds") == 0;
    at_late = is_culprit || strcmp(argv[4], "late") == 0;
    void *module, *const image = read_file(argv[5]);
    int shared = 0;
    if (cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0 || cuCtxSetCurrent(context) != 0) return 3;
    if (cuModuleLoadData(&module, image) != 0) return 4;
    // The driver has its own copy by now.
    memset(image, 0, 1 << 20);
    free(image);
    if (cuModuleGetFunction(&affine, module, "affine") != 0 || cuModuleGetFunction(&combine, module, "combine") != 0 || cuModuleGetFunction(&count, module, "count") != 0 || cuModuleGetFunction(&trap, module, "trap") != 0) return 5;
    if (cuFuncSetAttribute(affine, 8, 65536) != 0 || cuFuncSetAttribute(combine, 8, 65536) != 0) return 6;
    address managed;
    if (getenv("USES_MANAGED") != NULL && cuMemAllocManaged(&managed, 4096, 1) != 0) return 7;
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    pthread_t ids[64];
    worker *const workers = calloc((size_t)threads, sizeof *workers);
    for (int i = 0; i < threads && lost == 0; ++i) prepare(&workers[i]);
    const bool prepared = lost == 0;
    for (int i = 0; i < threads && prepared; ++i) {
        workers[i].seed = (unsigned)(atoi(argv[1]) * 1000 + i);
        pthread_create(&ids[i], NULL, run, &workers[i]);
    }
    for (int i = 0; i < threads && prepared; ++i) pthread_join(ids[i], NULL);
    if (lost == 0 && (cuCtxSynchronize() != 0 || cuFuncGetAttribute(&shared, 8, affine) != 0 || shared != 65536)) wrong("attribute", shared);
    if (lost == 0) printf("survived%s\n", atomic_load(&faulted) ? "" : " without a fault");
    else printf("lost %d\n", (int)lost);
    return 0;
}
