// What two threads do at once, in an order that the stub keeps, or as it comes.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "program.h"

// A deadlock ends the program with a signal, and by that the test.
#define SECONDS 60

enum { ROUNDS = 2000 };
static _Atomic bool looked_enough;

// Loads and unloads a library that asks for dlsym itself, for as long as the others look.
static void *loads(void *argument) {
    (void)argument;
    while (!looked_enough) {
        void *const library = dlopen("./lazy_plugin.so", RTLD_NOW | RTLD_LOCAL);
        CHECK(library != NULL && dlclose(library) == 0);
    }
    return NULL;
}

// The preload looks through all libraries after each load with RTLD_DEEPBIND.
static void looks_while_others_load(const api *cuda) {
    (void)cuda;
    pthread_t threads[2];
    alarm(SECONDS);
    for (int i = 0; i < 2; ++i) CHECK(pthread_create(&threads[i], NULL, loads, NULL) == 0);
    for (int i = 0; i < ROUNDS; ++i) {
        void *const library = dlopen("./plugin.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
        CHECK(library != NULL && dlsym(library, "plugin_reach") != NULL && dlclose(library) == 0);
    }
    looked_enough = true;
    for (int i = 0; i < 2; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
}

typedef struct {
    const api *cuda;
    void *context;
    size_t size;
    uint64_t address;
    int result;
} call;

static void *allocates(void *argument) {
    call *const c = argument;
    CHECK(cuCtxSetCurrent(c->context) == 0);
    c->result = c->cuda->cuMemAlloc_v2(&c->address, c->size);
    return NULL;
}

static void *frees(void *argument) {
    call *const c = argument;
    CHECK(cuCtxSetCurrent(c->context) == 0);
    c->result = c->cuda->cuMemFree_v2(c->address);
    return NULL;
}

static pthread_t begun(void *(*function)(void *), call *argument) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, function, argument) == 0);
    return thread;
}

// A free during a capture, which puts it off.
static void free_while_captured(const api *cuda, void *stream, uint64_t address) {
    void *graph = NULL;
    CHECK(cuda->cuStreamBeginCapture_v2(stream, 0) == 0);
    CHECK(cuda->cuMemFree_v2(address) == 0);
    CHECK(cuda->cuStreamEndCapture(stream, &graph) == 0);
}

// One thread has waited for the work on what was freed first; a second one waits for the work on what was freed later,
// which is under way. What the first one gives back must not have that among it.
static void two_drains(const api *cuda) {
    void *context = NULL, *const stream = new_stream(cuda);
    uint64_t third = 0;
    alarm(SECONDS);
    cuCtxGetCurrent(&context);
    // Of one slab, which is full but for them.
    const uint64_t first = allocated(cuda, MIB), second = allocated(cuda, MIB);
    call one = {.cuda = cuda, .context = context, .size = 3 * MIB}, other = one;
    free_while_captured(cuda, stream, first);
    stub_hold("cuCtxSynchronize, over", 1);
    const pthread_t earlier = begun(allocates, &one);
    stub_wait_held(1);
    stub_work(stream, second);
    free_while_captured(cuda, stream, second);
    stub_hold("cuCtxSynchronize", 1);
    const pthread_t later = begun(allocates, &other);
    stub_wait_held(2);
    stub_let_go();
    CHECK(pthread_join(earlier, NULL) == 0 && one.result == 0);
    CHECK(cuda->cuMemAlloc_v2(&third, MIB) == 0 && third == first);
    CHECK(cuda->cuMemAlloc_v2(&third, MIB) == 0 && third != second);
    stub_let_go();
    CHECK(pthread_join(later, NULL) == 0 && other.result == 0);
    // Behind what is left of the newest slab.
    CHECK(cuda->cuMemAlloc_v2(&third, MIB) == 0);
    CHECK(cuda->cuMemAlloc_v2(&third, MIB) == 0 && third == second);
    check_nothing_left(cuda);
}

// The context is destroyed while a thread waits for its work, to free memory of it: the memory goes with the context.
static void destroyed_while_freed(const api *cuda) {
    void *primary = NULL, *own = NULL;
    alarm(SECONDS);
    cuCtxGetCurrent(&primary);
    CHECK(cuCtxCreate_v2(&own, 0, 0) == 0);
    call large = {.cuda = cuda, .context = own, .address = allocated(cuda, 4 * MIB)};
    call small = {.cuda = cuda, .context = own, .address = allocated(cuda, 700)};
    stub_hold("cuCtxSynchronize", 2);
    const pthread_t threads[] = {begun(frees, &large), begun(frees, &small)};
    stub_wait_held(2);
    CHECK(cuda->cuCtxDestroy_v2(own) == 0 && cuCtxSetCurrent(primary) == 0);
    stub_let_go(), stub_let_go();
    for (int i = 0; i < 2; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(large.result != 0 && small.result != 0);
    CHECK(stub_count("mappings") == 0);
    check_nothing_left(cuda);
}

// The same with memory of which the free was put off: it is tried again without the work that ended with the context.
static void destroyed_while_drained(const api *cuda) {
    void *primary = NULL, *own = NULL;
    alarm(SECONDS);
    cuCtxGetCurrent(&primary);
    CHECK(cuCtxCreate_v2(&own, 0, 0) == 0);
    const uint64_t large = allocated(cuda, 4 * MIB), small = allocated(cuda, 700);
    free_while_captured(cuda, new_stream(cuda), large);
    free_while_captured(cuda, new_stream(cuda), small);
    // A free of what is not ours tries again what was put off, and nothing else.
    call drains = {.cuda = cuda, .context = own, .address = 1};
    stub_hold("cuCtxSynchronize", 1);
    const pthread_t thread = begun(frees, &drains);
    stub_wait_held(1);
    CHECK(cuda->cuCtxDestroy_v2(own) == 0 && cuCtxSetCurrent(primary) == 0);
    stub_let_go();
    CHECK(pthread_join(thread, NULL) == 0 && drains.result != 0);
    allocated(cuda, 4 * MIB);
    CHECK(stub_count("mappings") == 1);
    check_nothing_left(cuda);
}

const scenario scenarios_of_races[] = {
    {"looks_while_others_load", looks_while_others_load},
    {"two_drains", two_drains},
    {"destroyed_while_freed", destroyed_while_freed},
    {"destroyed_while_drained", destroyed_while_drained},
    {NULL, NULL},
};
