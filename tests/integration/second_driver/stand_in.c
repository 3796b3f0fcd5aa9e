// A stand-in for libcuda.so.1 in tests of the second driver. It is no driver: memory is memory of this process, and a kernel is a C
// function. What it does as the driver of 580 was measured to do:
//
//   * one abstract socket for each process; a second copy of the file cannot bind its name again (cuInit 304);
//   * a wish for an address is heeded from 64 MiB on, where /proc/self/maps has nothing there;
//   * after a fault in the lane (a file `fault` in its pipe directory) every call that concerns the context gives 719,
//     what is queued is lost, and the first kernel of each stream is half done; some calls answer still (`alive`). With
//     STAND_IN_SEED, by chance, work in each stream is done before the fault, or done without anything that says so;
//   * a lane that has faulted serves again, to copies that come to it later: a file `incarnation` has its number, and what concerns one
//     behind the first is `fault-N`, `gone-N`;
//   * where the pipe directory has a control daemon, it is a client of that (mps.h), and the server tells of the fault;
//   * memory is exported after the fault too, and outlives the copy that made it;
//   * where there is no pipe directory, it runs outside of MPS: a fault of its own kernels is that of no lane;
//   * each copy has addresses of its own: another one may have other memory mapped there. Where a copy has some mapped it maps no other
//     (1), and it unmaps none where it has none (1). Memory is freed when no copy has it any more;
//   * a kernel does not reach memory to which access was not given, or was taken;
//   * cuMemAlloc, cuMemHostRegister and cuEventQuery break captures (900, and 901 at the end) as the mode of the thread and
//     that of the capture say; to create, reserve, map and export memory breaks none;
//   * a copy within the GPU of memory that is not mapped in its copy cannot be captured (1), and a graph with a memset of such
//     memory not be instantiated (1);
//   * handles of graphs and instances that were destroyed are given to the next ones;
//   * a kernel that reaches for memory that is not mapped in its copy faults: outside of MPS the word for it is 700.
//
// What is not known of a driver, it may be told to do: where its lane has a file `bound`, an instance is of use with the memory and the limit of the stack
// alone that were there when it was made.
//
// Likewise, with STAND_IN_EXPORTS_ONCE, to export nothing that it has imported.
//
// Work is queued, and done when something waits for it; with STAND_IN_SEED, by chance also before.
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "mps.h"

#define EXPORT __attribute__((visibility("default")))
#define UNIT ((uint64_t)2 << 20)
#define HEEDED ((uint64_t)64 << 20)
#define MOST 4096

enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, FILE_NOT_FOUND = 301, OPERATING_SYSTEM = 304, NO_CONTEXT = 201, UNSUPPORTED_LIMIT = 215, BAD_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ALREADY_REGISTERED = 712, CAPTURE_BROKEN = 901, CAPTURE_UNSUPPORTED = 900, ILLEGAL_ADDRESS = 700, LOST = 719, TERMINATED = 810, UNKNOWN_ERROR = 999 };

typedef struct { uint64_t p, n, a, b; } arguments;
typedef struct variable { char *name; uint64_t size; unsigned char *at; struct variable *next; } variable;
// Handles of another copy are a defect of what translates them: `of_copy` is first in each.
typedef struct module { const void *of_copy; variable *variables; int kernels; } module;
typedef struct function { const void *of_copy; char name[32]; module *of; int shared; bool loaded; } function;
struct stream;
// A kernel, a wait for another stream, a fill, or a copy.
typedef struct operation {
    function *f;
    arguments a;
    void *to;
    const void *from;
    size_t size;
    unsigned fill;  // bytes of a pattern
    struct stream *of;
    uint64_t behind;
    ino_t memory[2];  // of an instance: what was at `to` and `from` when it was made
    struct operation *next;
} operation;
// What was captured, in the order of the calls, which is one in which it can be done.
typedef struct graph { const void *of_copy; struct stream *origin; operation *first, **last; uint64_t id; bool broken; int mode; size_t stack; const void *thread; struct graph *ended; } graph;
typedef struct stream { const void *of_copy; operation *first, **last; uint64_t enqueued, done; bool gone, blocking, torn; graph *captured; } stream;
typedef struct event { const void *of_copy; stream *in; uint64_t behind; graph *captured; } event;
typedef struct { int fd; uint64_t size; int references; ino_t inode; bool imported; } memory;
typedef struct { uint64_t at, size; int of; uint64_t offset; int access; } range;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char lane[512], of_lane[16];  // and the end of the names of its files
static bool initialised, lost, trapped, was_reset;
static int loss = LOST;  // the word for it
static int first_visible;  // the GPU that is number 0
static int primary, uvm, device;
static __thread int current, stacked[16], depth;
static memory memories[MOST];
static range maps[MOST], plain[MOST];
static range variables[MOST], pinned[MOST];
static size_t map_count, plain_count, variable_count, pinned_count;
static stream default_stream = {.of_copy = &primary, .last = &default_stream.first, .blocking = true};
static module *free_module;
static stream *streams[MOST];
static size_t stream_count;
static unsigned dice;  // 0: nothing is by chance

// A test wants a call to fail, once: from the one on of which a file `fail-NAME` in the lane has the number.
static bool fails(const char *name, int call) {
    char path[600], number[16] = "";
    snprintf(path, sizeof path, "%s/fail-%s", lane, name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const bool there = fd >= 0 && read(fd, number, sizeof number - 1) > 0;
    if (fd >= 0) close(fd);
    return there && call >= atoi(number) && unlink(path) == 0;
}
#define MAY_FAIL                                                  \
    do {                                                          \
        static _Atomic int calls_;                                \
        if (fails(__func__, ++calls_)) return UNKNOWN_ERROR;      \
    } while (0)

// The server has ended this client (a file `gone`): then no call is answered any more.
static bool is_gone(void) {
    char path[600];
    snprintf(path, sizeof path, "%s/gone%s", lane, of_lane);
    return access(path, F_OK) == 0;
}

static bool is_alone(void) { return access(lane, F_OK) != 0; }

static unsigned roll(unsigned sides) { return dice == 0 ? 0 : (unsigned)rand_r(&dice) % sides; }
static void tear(stream *s);

// Under the lock.
static bool is_lost(void) {
    char path[600];
    if (lost || primary == 0) return lost;
    snprintf(path, sizeof path, "%s/fault%s", lane, of_lane);
    if (!trapped && access(path, F_OK) != 0 && !mps_is_lost()) return false;
    if (pthread_mutex_trylock(&lock) == 0) {
        fputs("streams are torn without the lock\n", stderr);
        abort();
    }
    lost = true;
    tear(&default_stream);
    for (size_t i = 0; i < stream_count; ++i) tear(streams[i]);
    return true;
}

#define BEGIN                                                  \
    if (!initialised) return NOT_INITIALIZED;                  \
    if (is_gone()) return TERMINATED;                          \
    pthread_mutex_lock(&lock);                                 \
    if (current == 0) return pthread_mutex_unlock(&lock), NO_CONTEXT; \
    if (is_lost()) return pthread_mutex_unlock(&lock), loss
// The result is worked out under the lock: it may be that the fault is seen just now.
#define END(result)                  \
    do {                             \
        const int end_ = (result);   \
        pthread_mutex_unlock(&lock); \
        return end_;                 \
    } while (0)
#define END_OF_WAIT END(is_lost() ? loss : OK)
#define ALIVE                                    \
    if (!initialised) return NOT_INITIALIZED;    \
    if (is_gone()) return TERMINATED

static void own(const void *handle) {
    if (*(const void *const *)handle == &primary) return;
    fputs("a handle of another copy, or of none\n", stderr);
    abort();
}

// Stands still where the test wants it: while there is a file `pause-WHAT` in the lane. Tells of it by a file `paused`.
static void pause_in(const char *what) {
    char path[600], told[600];
    snprintf(path, sizeof path, "%s/pause-%s", lane, what);
    snprintf(told, sizeof told, "%s/paused", lane);
    if (access(path, F_OK) != 0) return;
    close(open(told, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    for (int i = 0; i < 10000 && access(path, F_OK) == 0; ++i) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

// Stands still where the test has two fifos, `in-WHAT` and `on-WHAT`: it tells by the one, and goes on by the other.
static void meet_in(const char *what) {
    char path[600];
    snprintf(path, sizeof path, "%s/in-%s", lane, what);
    const int told = open(path, O_WRONLY | O_CLOEXEC);
    if (told < 0) return;
    close(told);
    snprintf(path, sizeof path, "%s/on-%s", lane, what);
    close(open(path, O_RDONLY | O_CLOEXEC));
}

// A kernel of this process faults: so does its lane, if it is on one.
static void trap(void) {
    char path[600];
    trapped = true;
    snprintf(path, sizeof path, "%s/fault%s", lane, of_lane);
    if (is_alone()) mps_tell_kernel_log(first_visible + device, true);
    else if (!mps_trap(first_visible + device)) close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
}

static bool is_in(const range *all, size_t count, uint64_t at) {
    for (size_t i = 0; i < count; ++i)
        if (at - all[i].at < all[i].size) return all[i].access != 0;
    return false;
}
// What this copy has mapped, or was told of: a kernel of the GPU reaches no other memory.
static bool reaches(uint64_t at) {
    return is_in(maps, map_count, at) || is_in(plain, plain_count, at) || is_in(pinned, pinned_count, at) ||
           is_in(variables, variable_count < MOST ? variable_count : MOST, at);
}

// What all copies in this process know, each by the same address: which of them is seen at an address, and what memory there is.
typedef struct {
    _Atomic int lock;
    int place_count, memory_count;
    struct { uint64_t at; int copies; const void *seen; } places[MOST];
    struct { ino_t inode; uint64_t size; int copies; } memories[MOST];
} common;
static common *open_common(void) {
    static common *table;
    void *const place = (void *)(uintptr_t)UINT64_C(0x10000000000);
    if (table == NULL) mmap(place, sizeof *table, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    table = place;
    while (__atomic_exchange_n(&table->lock, 1, __ATOMIC_ACQUIRE) != 0) sched_yield();
    return table;
}
static void close_common(common *table) { __atomic_store_n(&table->lock, 0, __ATOMIC_RELEASE); }
static int place_of(common *table, uint64_t at) {
    int found = table->place_count;
    for (int i = 0; i < table->place_count; ++i) {
        if (table->places[i].copies == 0) found = i;
        else if (table->places[i].at == at) return i;
    }
    if (found == table->place_count) ++table->place_count;
    table->places[found].at = at;
    table->places[found].seen = NULL;
    return found;
}
// By so many copies more; returns how many there are then. What this copy has there is another memory now.
static int map_together(uint64_t at, int more) {
    common *const table = open_common();
    const int i = place_of(table, at), copies = table->places[i].copies += more;
    if (table->places[i].seen == &primary) table->places[i].seen = NULL;
    close_common(table);
    return copies;
}
static void have_together(const memory *m, int more) {
    common *const table = open_common();
    int found = table->memory_count;
    for (int i = 0; i < table->memory_count; ++i) {
        if (table->memories[i].copies > 0 && table->memories[i].inode == m->inode) { found = i; break; }
        if (table->memories[i].copies == 0) found = i;
    }
    if (found == table->memory_count) ++table->memory_count;
    table->memories[found].inode = m->inode;
    table->memories[found].size = m->size;
    table->memories[found].copies += more;
    close_common(table);
}
static uint64_t all_memory(void) {
    common *const table = open_common();
    uint64_t all = 0;
    for (int i = 0; i < table->memory_count; ++i) all += table->memories[i].copies > 0 ? table->memories[i].size : 0;
    close_common(table);
    return all;
}
// The process has one memory at each address: that of the copy which works there.
static void look(uint64_t at, uint64_t size) {
    for (size_t i = 0; i < map_count; ++i) {
        if (at >= maps[i].at + maps[i].size || maps[i].at >= at + size) continue;
        common *const table = open_common();
        const int k = place_of(table, maps[i].at);
        if (table->places[k].seen != &primary) mmap((void *)(uintptr_t)maps[i].at, maps[i].size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memories[maps[i].of].fd, (off_t)maps[i].offset);
        table->places[k].seen = &primary;
        close_common(table);
    }
}

static void finish(stream *s, uint64_t until);
// `steps`: as far as it comes, in elements of a kernel or bytes.
static void run(const operation *o, size_t steps) {
    if (o->of != NULL) {
        finish(o->of, o->behind);
        return;
    }
    look((uintptr_t)o->to, o->size);
    look((uintptr_t)o->from, o->size);
    if (o->f == NULL && o->fill == 1) {
        memset(o->to, (int)o->a.a, steps < o->size ? steps : o->size);
        return;
    }
    if (o->f == NULL && o->fill > 0) {
        for (size_t i = 0; i < o->size && i < steps; ++i) ((char *)o->to)[i] = ((const char *)&o->a.a)[i % o->fill];
        return;
    }
    if (o->f == NULL) {
        memcpy(o->to, o->from, steps < o->size ? steps : o->size);
        return;
    }
    if (strcmp(o->f->name, "nothing") == 0) return;
    uint32_t *const p = (uint32_t *)(uintptr_t)o->a.p;
    const uint32_t *const q = (const uint32_t *)(uintptr_t)o->a.b;
    const bool indirect = strcmp(o->f->name, "indirect") == 0;
    look(o->a.p, 4 * o->a.n + 8);
    look(o->a.b, 4 * o->a.n);
    const uint64_t at = indirect && reaches(o->a.p) ? *(const uint64_t *)p : o->a.p;
    const bool looks_at_none = strcmp(o->f->name, "trap") == 0;
    if ((!looks_at_none && !reaches(at)) || (strcmp(o->f->name, "combine") == 0 && !reaches(o->a.b))) {
        if (!is_alone()) return trap();
        trapped = true;
        loss = ILLEGAL_ADDRESS;
        return;
    }
    look(at, 4);
    if (indirect) *(uint32_t *)(uintptr_t)at += 1;
    if (strcmp(o->f->name, "affine") == 0)
        for (uint64_t i = 0; i < o->a.n && i < steps; ++i) p[i] = p[i] * (uint32_t)o->a.a + (uint32_t)o->a.b;
    if (strcmp(o->f->name, "combine") == 0)
        for (uint64_t i = 0; i < o->a.n && i < steps; ++i) p[i] = p[i] * (uint32_t)o->a.a + q[i];
    if (trapped) return;
    if (strcmp(o->f->name, "trap") == 0) trap();
    // As one that calls a function by an address in memory: in another copy, code is elsewhere.
    if (strcmp(o->f->name, "own_code") == 0 && *(uint64_t *)p != 0 && *(uint64_t *)p != (uintptr_t)&primary) trap();
    if (strcmp(o->f->name, "own_code") == 0) *(uint64_t *)p = (uintptr_t)&primary;
    // As a sum by atomics, in an order of its own: another result with each copy.
    if (strcmp(o->f->name, "arbitrary") == 0) p[0] = (uint32_t)(uintptr_t)&primary;
    for (variable *v = o->f->of->variables; v != NULL && steps == SIZE_MAX; v = v->next)
        if (strcmp(o->f->name, "count") == 0 && strcmp(v->name, "counter") == 0) p[0] = ++*(uint32_t *)v->at;
        else if (strcmp(o->f->name, "scale") == 0 && strcmp(v->name, "factor") == 0) p[0] = *(uint32_t *)v->at;
}

static void drop_first(stream *s) {
    operation *const o = s->first;
    s->first = o->next;
    if (s->first == NULL) s->last = &s->first;
    free((void *)(o->f == NULL && o->fill == 0 && o->a.a ? o->from : NULL));
    free(o);
}
static void finish(stream *s, uint64_t until) {
    while (s->first != NULL && s->done < until && !trapped) {
        run(s->first, SIZE_MAX);
        if (trapped) return;
        drop_first(s);
        ++s->done;
    }
}
// Some of it is done, the next one may be half done or done without a sign, and the rest never begins.
static void tear(stream *s) {
    for (unsigned ahead = roll(4); ahead > 0 && s->first != NULL; --ahead) {
        if (s->first->of != NULL && s->first->of->torn && s->first->of->done < s->first->behind) break;
        finish(s, s->done + 1);
    }
    s->torn = true;
    operation *const o = s->first;
    if (o != NULL && o->of == NULL) {
        const size_t all = o->f != NULL ? o->a.n : o->size;
        const unsigned how = roll(3);
        if (how < 2) run(o, how == 0 ? all / 2 : SIZE_MAX);
    }
    while (s->first != NULL) drop_first(s);
}
static stream *of(void *handle) {
    static __thread stream *of_thread;  // its work goes on when the thread has ended
    if ((uintptr_t)handle == 2) {
        if (of_thread == NULL) {
            of_thread = streams[stream_count++] = calloc(1, sizeof *of_thread);
            *of_thread = (stream){.of_copy = &primary, .last = &of_thread->first, .blocking = true};
        }
        return of_thread;
    }
    if ((uintptr_t)handle < 16) return &default_stream;
    own(handle);
    return handle;
}
static void queue(stream *s, operation o) {
    // The default stream and those that are not apart from it wait for each other.
    if (s->captured != NULL) {
    } else if (s == &default_stream) {
        for (size_t i = 0; i < stream_count; ++i)
            if (streams[i]->blocking) finish(streams[i], UINT64_MAX);
    } else if (s->blocking) {
        finish(&default_stream, UINT64_MAX);
    }
    operation *const made = malloc(sizeof *made);
    *made = o;
    made->next = NULL;
    if (s->captured != NULL) {
        *s->captured->last = made;
        s->captured->last = &made->next;
        return;
    }
    *s->last = made;
    s->last = &made->next;
    ++s->enqueued;
    if (roll(6) == 1) finish(s, s->done + 1);
}

EXPORT int cuInit(unsigned flags) {
    (void)flags;
    if (initialised) return OK;
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "cuda-uvmfd-4026531836-%d", (int)getpid());
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fd, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length + 1)) != 0) return close(fd), OPERATING_SYSTEM;
    const char *const where = getenv("CUDA_MPS_PIPE_DIRECTORY");
    snprintf(lane, sizeof lane, "%s", where != NULL ? where : "");
    char path[600], number[12] = "";
    snprintf(path, sizeof path, "%s/incarnation", lane);
    const int incarnation = open(path, O_RDONLY | O_CLOEXEC);
    if (incarnation >= 0 && read(incarnation, number, sizeof number - 1) > 0) snprintf(of_lane, sizeof of_lane, "-%s", number);
    if (incarnation >= 0) close(incarnation);
    const char *const visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible != NULL && strncmp(visible, "GPU-", 4) == 0) first_visible = (int)strtol(visible + strlen(visible) - 2, NULL, 16);
    MAY_FAIL;
    const int refused = mps_init(lane);
    if (refused != 0) return close(fd), refused;
    uvm = memfd_create("nvidia-uvm", MFD_CLOEXEC);
    if (ftruncate(uvm, (off_t)1 << 48) != 0) return OPERATING_SYSTEM;
    if (getenv("STAND_IN_SEED") != NULL) dice = (unsigned)atoi(getenv("STAND_IN_SEED"));
    pause_in("init");
    initialised = true;
    return OK;
}
EXPORT int cuDriverGetVersion(int *v) { return *v = 13000, OK; }
EXPORT int cuDeviceGet(int *d, int ordinal) { return *d = ordinal, OK; }
// The last byte is the number of the GPU.
EXPORT int cuDeviceGetUuid_v2(unsigned char *out, int d) { memset(out, 0, 16); out[15] = (unsigned char)(first_visible + d); return OK; }
EXPORT int cuDeviceGetCount(int *n) { const char *const text = getenv("STAND_IN_DEVICES"); return *n = text != NULL ? atoi(text) : 1, OK; }
EXPORT int cuDeviceCanAccessPeer(int *can, int from, int to) { return *can = from != to, OK; }
static int others[8];  // primary contexts of other devices, of which there is no more than that they are made
EXPORT int cuDeviceGetAttribute(int *v, int a, int d) { return (void)d, *v = a == 11 ? INT32_MAX : a != 88, OK; }  // 88: kernels reach all host memory
EXPORT int cuDevicePrimaryCtxRetain(void **c, int d) { ALIVE; MAY_FAIL; if (was_reset) return UNKNOWN_ERROR; if (is_alone() && getenv("STAND_IN_NOT_ALONE") != NULL) return 46; if (primary && d != device) return others[d] = 1, *c = (void *)&others[d], OK; const int refused = mps_make_context(); if (refused != 0) return refused; device = d; primary = 1; *c = (void *)&primary; return OK; }
EXPORT int cuDevicePrimaryCtxRelease_v2(int d) { return (void)d, OK; }
EXPORT int cuDevicePrimaryCtxReset_v2(int d) { return (void)d, mps_leave(), was_reset = true, OK; }
EXPORT int cuDevicePrimaryCtxGetState(int d, unsigned *f, int *a) { return *f = 0, *a = d == device ? primary : others[d], OK; }
EXPORT int cuCtxGetCurrent(void **c) { ALIVE; *c = current ? (void *)&primary : NULL; return OK; }
EXPORT int cuCtxSetCurrent(void *c) {
    ALIVE;
    if (c != NULL && c != (void *)&primary) return NO_CONTEXT;
    return current = c != NULL, OK;
}
EXPORT int cuCtxPushCurrent_v2(void *c) { if (c != (void *)&primary) return NO_CONTEXT; stacked[depth++] = current; current = 1; return OK; }
EXPORT int cuCtxPopCurrent_v2(void **c) { *c = current ? (void *)&primary : NULL; current = stacked[--depth]; return OK; }
EXPORT int cuCtxGetDevice(int *d) { return current ? (*d = device, OK) : NO_CONTEXT; }
EXPORT int cuCtxCreate_v2(void **c, unsigned f, int d) { return (void)c, (void)f, (void)d, OK; }
EXPORT int cuCtxDestroy_v2(void *c) { return (void)c, OK; }
static size_t stack_limit = 1024;
EXPORT int cuCtxSetLimit(int l, size_t v) { BEGIN; if (l == 0) stack_limit = v; END(OK); }
EXPORT int cuCtxGetLimit(size_t *v, int l) { BEGIN; if (l == 0) *v = stack_limit; END(l == 0 ? OK : UNSUPPORTED_LIMIT); }
EXPORT int cuCtxSynchronize(void) {
    MAY_FAIL;
    BEGIN;
    finish(&default_stream, UINT64_MAX);
    for (size_t i = 0; i < stream_count; ++i) finish(streams[i], UINT64_MAX);
    END_OF_WAIT;
}
EXPORT int cuStreamCreateWithPriority(stream **out, unsigned flags, int priority) {
    MAY_FAIL;
    (void)priority;
    BEGIN;
    if (stream_count == MOST) END(OUT_OF_MEMORY);
    stream *const s = calloc(1, sizeof *s);
    s->of_copy = &primary;
    s->blocking = flags != 1;
    s->last = &s->first;
    streams[stream_count++] = *out = s;
    END(OK);
}
EXPORT int cuStreamCreate(stream **out, unsigned flags) { return cuStreamCreateWithPriority(out, flags, 0); }
EXPORT int cuStreamDestroy_v2(stream *s) { BEGIN; own(s); finish(s, UINT64_MAX); s->gone = true; END(OK); }
enum { GLOBAL_MODE = 0, RELAXED_MODE = 2 };
static __thread int capture_mode;
EXPORT int cuThreadExchangeStreamCaptureMode(int *mode) {
    const int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return OK;
}
// What this thread may not do meanwhile, and which captures it breaks. Under the lock.
static bool breaks_captures(void) {
    bool any = false;
    for (size_t i = 0; i < stream_count && capture_mode != RELAXED_MODE; ++i) {
        graph *const g = streams[i]->captured;
        if (g == NULL) continue;
        if (g->thread == &capture_mode ? g->mode != RELAXED_MODE : capture_mode == GLOBAL_MODE && g->mode == GLOBAL_MODE) any = g->broken = true;
    }
    return any;
}
// A capture ends when its stream is asked or waited for.
static bool breaks_capture(stream *s) { return s->captured != NULL && (s->captured->broken = true); }
static int wait_for(void *h) { BEGIN; if (breaks_capture(of(h))) END(CAPTURE_UNSUPPORTED); finish(of(h), UINT64_MAX); END_OF_WAIT; }
EXPORT int cuStreamSynchronize(void *h) { const int result = wait_for(h); pause_in("wait"); return result; }
EXPORT int cuStreamQuery(void *h) {
    BEGIN;
    if (breaks_capture(of(h))) END(CAPTURE_UNSUPPORTED);
    if (of(h)->first == NULL) END(OK);
    const function *const f = of(h)->first->f;
    if (f != NULL && strcmp(f->name, "endless_alone") == 0 && is_alone()) END(NOT_READY);
    finish(of(h), of(h)->done + 1);
    END(is_lost() ? loss : NOT_READY);
}
EXPORT int cuStreamGetId(void *h, unsigned long long *id) { BEGIN; if (breaks_capture(of(h))) END(CAPTURE_UNSUPPORTED); *id = (uintptr_t)h; END(OK); }
EXPORT int cuStreamIsCapturing(void *h, int *s) { BEGIN; *s = of(h)->captured != NULL; END(OK); }
EXPORT int cuStreamGetCaptureInfo(void *h, int *s, uint64_t *id) { BEGIN; *s = of(h)->captured != NULL; *id = *s ? of(h)->captured->id : 0; END(OK); }
EXPORT int cuEventCreate(event **out, unsigned flags) { (void)flags; MAY_FAIL; BEGIN; *out = calloc(1, sizeof **out); (*out)->of_copy = &primary; END(OK); }
EXPORT int cuEventDestroy_v2(event *e) { BEGIN; own(e); free(e); END(OK); }
static int record(event *e, void *h) {
    BEGIN;
    own(e);
    // The default stream waits for those that are not apart from it.
    for (size_t i = 0; of(h) == &default_stream && default_stream.captured == NULL && i < stream_count; ++i)
        if (streams[i]->blocking && streams[i]->captured == NULL) finish(streams[i], UINT64_MAX);
    e->in = of(h);
    e->behind = e->in->enqueued;
    e->captured = e->in->captured;
    END(OK);
}
EXPORT int cuEventRecord(event *e, void *h) { const int result = record(e, h); pause_in("record"); return result; }
// Of one that this copy has not recorded there is no time.
EXPORT int cuEventElapsedTime(float *ms, event *a, event *b) { BEGIN; own(a); own(b); *ms = 1; END(a->in != NULL && b->in != NULL ? OK : BAD_HANDLE); }
EXPORT int cuEventQuery(event *e) {
    BEGIN;
    own(e);
    if (breaks_captures()) END(CAPTURE_UNSUPPORTED);
    if (e->in == NULL || e->in->done >= e->behind) END(OK);
    finish(e->in, e->in->done + 1);
    END(is_lost() ? loss : NOT_READY);
}
EXPORT int cuEventSynchronize(event *e) { BEGIN; own(e); if (e->in != NULL) finish(e->in, e->behind); END_OF_WAIT; }
EXPORT int cuStreamWaitEvent(void *h, event *e, unsigned flags) {
    (void)flags;
    BEGIN;
    own(e);
    if (e->captured != NULL) of(h)->captured = e->captured;
    else if (e->in != NULL && e->in != of(h)) queue(of(h), (operation){.of = e->in, .behind = e->behind});
    END(OK);
}

// An image is an ELF file, in which each object in a variable section is a variable; or a text, which has none.
static module *load(const unsigned char *bytes) {
    module *const m = free_module != NULL ? free_module : calloc(1, sizeof *m);
    free_module = NULL;
    *m = (module){.of_copy = &primary};
    if (bytes[0] == '.') return m;
    const Elf64_Ehdr *const head = (const void *)bytes;
    const Elf64_Shdr *const section = (const void *)(bytes + head->e_shoff);
    for (int k = 0; k < head->e_shnum; ++k) {
        if (section[k].sh_type != SHT_SYMTAB) continue;
        const Elf64_Sym *const symbols = (const void *)(bytes + section[k].sh_offset);
        const char *const texts = (const char *)bytes + section[section[k].sh_link].sh_offset;
        for (size_t i = 0; i < section[k].sh_size / sizeof *symbols; ++i) {
            const Elf64_Sym *const s = &symbols[i];
            if (ELF64_ST_TYPE(s->st_info) == STT_FUNC) ++m->kernels;
            if (ELF64_ST_TYPE(s->st_info) != STT_OBJECT) continue;
            variable *const v = calloc(1, sizeof *v);
            *v = (variable){strdup(texts + s->st_name), s->st_size, calloc(1, s->st_size), m->variables};
            const Elf64_Shdr *const in = &section[s->st_shndx];
            if (in->sh_type != SHT_NOBITS) memcpy(v->at, bytes + in->sh_offset + s->st_value, s->st_size);
            m->variables = v;
            variables[variable_count++ % MOST] = (range){(uintptr_t)v->at, v->size, 0, 0, 3};
        }
    }
    return m;
}
EXPORT int cuModuleLoadDataEx(module **out, const void *image, unsigned n, int *o, void **v) { (void)n, (void)o, (void)v; MAY_FAIL; BEGIN; *out = load(image); END(OK); }
EXPORT int cuModuleLoadData(module **out, const void *image) { return cuModuleLoadDataEx(out, image, 0, NULL, NULL); }
EXPORT int cuModuleLoad(module **out, const char *path) {
    static unsigned char bytes[1 << 20];
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, bytes, sizeof bytes) <= 0) return FILE_NOT_FOUND;
    close(fd);
    return cuModuleLoadData(out, bytes);
}
// As the driver does, it gives the handles to what is loaded next.
static void forget_functions(const module *m);
EXPORT int cuModuleUnload(module *m) { BEGIN; own(m); forget_functions(m); m->of_copy = NULL; free_module = m; END(OK); }
EXPORT int cuLibraryLoadData(module **out, const void *image, int *o, void **v, unsigned n, int *p, void **q, unsigned k) { (void)o, (void)v, (void)n, (void)p, (void)q, (void)k; ALIVE; *out = load(image); return OK; }
EXPORT int cuLibraryUnload(module *m) { return (void)m, OK; }
EXPORT int cuLibraryGetModule(module **out, module *m) { BEGIN; *out = m; END(OK); }
EXPORT int cuLibraryGetKernelCount(unsigned *n, module *m) { return *n = (unsigned)m->kernels, OK; }
static function *known[MOST];
static int known_count;
static void forget_functions(const module *m) {
    for (int i = 0; i < known_count; ++i)
        if (known[i]->of == m) known[i]->of = NULL;
}
static int function_of(function **out, module *m, const char *name) {
    static const char *const there[] = {"affine", "combine", "arbitrary", "count", "scale", "trap", "own_code", "endless_alone", "indirect", "nothing"};
    size_t known_name = 0;
    while (known_name < sizeof there / sizeof *there && strcmp(there[known_name], name) != 0) ++known_name;
    if (known_name == sizeof there / sizeof *there) return NOT_FOUND;
    own(m);
    function *f = NULL;
    for (int i = 0; f == NULL && i < known_count; ++i) {
        if (known[i]->of == m && strcmp(known[i]->name, name) == 0) f = known[i];
        else if (known[i]->of == NULL) f = known[i];
    }
    if (f == NULL) known[known_count++] = f = calloc(1, sizeof *f);
    else if (f->of == m) return *out = f, OK;
    *f = (function){.of_copy = &primary};
    snprintf(f->name, sizeof f->name, "%s", name);
    f->of = m;
    *out = f;
    return OK;
}
EXPORT int cuModuleGetFunction(function **out, module *m, const char *name) { MAY_FAIL; BEGIN; END(function_of(out, m, name)); }
EXPORT int cuLibraryGetKernel(function **out, module *m, const char *name) { ALIVE; return function_of(out, m, name); }
EXPORT int cuKernelGetFunction(function **out, function *k) { BEGIN; *out = k; END(OK); }
EXPORT int cuLibraryEnumerateKernels(function **out, unsigned n, module *m) { ALIVE; return n > 0 ? function_of(out, m, "affine") : OK; }
EXPORT int cuFuncSetAttribute(function *f, int a, int v) { BEGIN; own(f); if (a == 8) f->shared = v; END(OK); }
EXPORT int cuFuncGetAttribute(int *v, int a, function *f) { BEGIN; own(f); *v = a == 8 ? f->shared : 0; END(OK); }
// Each has four parameters of eight bytes.
EXPORT int cuFuncGetParamInfo(function *f, size_t i, size_t *offset, size_t *size) { BEGIN; own(f); if (i >= 4) END(INVALID); *offset = 8 * i; *size = 8; END(OK); }
EXPORT int cuKernelGetParamInfo(function *f, size_t i, size_t *offset, size_t *size) { return cuFuncGetParamInfo(f, i, offset, size); }
static int global(uint64_t *at, size_t *size, module *m, const char *name) {
    for (variable *v = m->variables; v != NULL; v = v->next) {
        if (strcmp(v->name, name) != 0) continue;
        if (at != NULL) *at = (uintptr_t)v->at;
        if (size != NULL) *size = v->size;
        return OK;
    }
    return NOT_FOUND;
}
EXPORT int cuModuleGetGlobal_v2(uint64_t *at, size_t *size, module *m, const char *name) { MAY_FAIL; BEGIN; END(global(at, size, m, name)); }
EXPORT int cuLibraryGetGlobal(uint64_t *at, size_t *size, module *m, const char *name) { BEGIN; END(global(at, size, m, name)); }
// By itself, or by the first launch.
static int load_function(function *f) {
    if (f->loaded) return OK;
    MAY_FAIL;
    f->loaded = true;
    return OK;
}
// Of its own, for launches that have not ended; it is not given back.
static int have_room(size_t launches) {
    static size_t room = 16;
    if (launches <= room) return OK;
    MAY_FAIL;
    room *= 2;
    return OK;
}
EXPORT int cuFuncLoad(function *f) { BEGIN; own(f); END(load_function(f)); }
EXPORT int cuLaunchKernel(function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *h, void **p, void **e) {
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
    char late[600];
    // Some threads learn of a fault later than others.
    snprintf(late, sizeof late, "%s/late", lane);
    if (access(late, F_OK) == 0) return OK;
    BEGIN;
    own(f);
    if ((int)shared > f->shared && shared > 49152) END(INVALID);
    const int loaded = load_function(f);
    if (loaded != OK) END(loaded);
    const int room = have_room(of(h)->enqueued - of(h)->done + 1);
    if (room != OK) END(room);
    // `extra`: all of them in one piece, behind the first key.
    const uint64_t *const packed = p == NULL ? e[1] : NULL;
    uint64_t given[4];
    for (int i = 0; i < 4; ++i) given[i] = packed != NULL ? packed[i] : *(uint64_t *)p[i];
    queue(of(h), (operation){.f = f, .a = {given[0], given[1], given[2], given[3]}});
    END(OK);
}
typedef struct { unsigned sizes[7]; void *stream; const void *attributes; unsigned attribute_count; } launch_config;
EXPORT int cuLaunchKernelEx(const launch_config *c, function *f, void **p, void **e) {
    const unsigned *const s = c->sizes;
    return cuLaunchKernel(f, s[0], s[1], s[2], s[3], s[4], s[5], s[6], c->stream, p, e);
}
EXPORT int cuLaunchCooperativeKernel(function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *h, void **p) {
    return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, h, p, NULL);
}
// The default pool of each copy is another one, and has settings alone; memory of it ends with the copy.
static struct { const void *of_copy; uint64_t settings[9]; } default_pool = {.of_copy = &primary};
EXPORT int cuDeviceGetDefaultMemPool(void **out, int d) { (void)d; ALIVE; *out = &default_pool; return OK; }
EXPORT int cuDeviceGetMemPool(void **out, int d) { return cuDeviceGetDefaultMemPool(out, d); }
EXPORT int cuMemPoolSetAttribute(void *p, int a, void *v) { BEGIN; own(p); default_pool.settings[a] = a < 4 ? *(unsigned *)v : *(uint64_t *)v; END(OK); }
EXPORT int cuMemPoolGetAttribute(void *p, int a, void *v) { BEGIN; own(p); if (a < 4) *(unsigned *)v = (unsigned)default_pool.settings[a]; else *(uint64_t *)v = default_pool.settings[a]; END(OK); }
EXPORT int cuMemPoolTrimTo(void *p, size_t n) { (void)n; BEGIN; own(p); END(OK); }
EXPORT int cuStreamGetCtx(void *h, void **c) { BEGIN; if (breaks_capture(of(h))) END(CAPTURE_UNSUPPORTED); *c = (void *)&primary; END(OK); }
static void *of_pool[MOST];
EXPORT int cuMemAllocAsync(uint64_t *out, size_t size, void *h) {
    BEGIN;
    (void)of(h);
    void *const at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    plain[plain_count] = (range){(uintptr_t)at, size, 0, 0, 3};
    of_pool[plain_count++] = at;
    *out = (uintptr_t)at;
    END(OK);
}
EXPORT int cuMemFreeAsync(uint64_t at, void *h) {
    BEGIN;
    (void)of(h);
    bool found = false;
    for (size_t i = 0; i < plain_count && !found; ++i)
        if (of_pool[i] == (void *)(uintptr_t)at && at != 0) found = true, of_pool[i] = NULL;
    END(found ? OK : INVALID);
}
// Memory of a pool, which the host cannot reach, and where it can be reached here.
static char *pool, *pool_inside;
static void *reached(const void *at) {
    const size_t offset = (size_t)((const char *)at - pool);
    return pool != NULL && offset < UNIT ? pool_inside + offset : (void *)(uintptr_t)at;
}
EXPORT int cuMemAllocFromPoolAsync(uint64_t *out, size_t size, void *p, void *h) {
    (void)p, (void)h;
    BEGIN;
    if (size > UNIT || pool != NULL) END(OUT_OF_MEMORY);
    pool = mmap(NULL, UNIT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pool_inside = mmap(NULL, UNIT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *out = (uintptr_t)pool;
    END(OK);
}
static int copy(void *to, const void *from, size_t size, void *h, bool staged, bool wait) {
    BEGIN;
    to = reached(to);
    from = reached(from);
    if (size == 0) END(OK);
    void *staging = NULL;
    if (staged) look((uintptr_t)from, size);
    if (staged) from = memcpy(staging = malloc(size), from, size);
    queue(of(h), (operation){.to = to, .from = from, .size = size, .a = {.a = staged}});
    if (wait) finish(of(h), UINT64_MAX);
    END(wait && is_lost() ? loss : OK);
}
// As documented for memory that is not pinned: it waits for the stream before it copies, and not for its own end.
EXPORT int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n) {
    MAY_FAIL;
    const int result = n > 0 ? cuStreamSynchronize(NULL) : OK;
    return result != OK ? result : copy((void *)(uintptr_t)to, from, n, NULL, true, false);
}
EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *h) { MAY_FAIL; return copy((void *)(uintptr_t)to, from, n, h, true, false); }
EXPORT int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n) {
    MAY_FAIL;
    // Within the GPU it does not wait.
    pthread_mutex_lock(&lock);
    const bool within = is_in(maps, map_count, (uintptr_t)to);
    pthread_mutex_unlock(&lock);
    return copy(to, (void *)(uintptr_t)from, n, NULL, false, !within);
}
EXPORT int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *h) { const int result = copy(to, (void *)(uintptr_t)from, n, h, false, false); pause_in("copy"); return result; }
EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void *h) {
    pause_in("between");
    BEGIN;
    if (of(h)->captured != NULL && !(reaches(to) && reaches(from))) END(INVALID);
    pthread_mutex_unlock(&lock);
    return copy((void *)(uintptr_t)to, (void *)(uintptr_t)from, n, h, false, false);
}
// From rows to rows of device memory.
EXPORT int cuMemcpy2DAsync_v2(const uint64_t *w, void *h) {
    for (uint64_t row = 0; row < w[15]; ++row) {
        const int result = cuMemcpyDtoDAsync_v2(w[11] + w[7] + (w[8] + row) * w[13], ((unsigned)w[2] == 1 ? w[3] : w[4]) + w[0] + (w[1] + row) * w[6], w[14], h);
        if (result != OK) return result;
    }
    return OK;
}
EXPORT int cuMemcpyAsync(uint64_t to, uint64_t from, size_t n, void *h) { return copy((void *)(uintptr_t)to, (void *)(uintptr_t)from, n, h, false, false); }
static int fill(uint64_t to, uint64_t value, unsigned bytes, size_t n, void *h) {
    BEGIN;
    queue(of(h), (operation){.to = (void *)(uintptr_t)to, .fill = bytes, .size = n * bytes, .a = {.a = value}});
    END(OK);
}
EXPORT int cuMemsetD8Async(uint64_t to, unsigned char v, size_t n, void *h) { return fill(to, v, 1, n, h); }
EXPORT int cuMemsetD32_v2_ptds(uint64_t to, unsigned v, size_t n) { return fill(to, v, 4, n, (void *)2); }
EXPORT int cuMemsetD32Async(uint64_t to, unsigned v, size_t n, void *h) { return fill(to, v, 4, n, h); }

// Graphs. Those that were destroyed, of both kinds.
static graph *ended_graphs, *ended_instances;
static graph *new_graph(graph **ended) {
    graph *const made = *ended != NULL ? *ended : calloc(1, sizeof *made);
    *ended = made->ended;
    *made = (graph){.of_copy = &primary, .last = &made->first};
    return made;
}
EXPORT int cuStreamBeginCapture_v2(void *h, int mode) {
    static uint64_t captures;
    meet_in("capture");
    BEGIN;
    if (of(h) == &default_stream || of(h)->captured != NULL) END(CAPTURE_UNSUPPORTED);
    graph *const g = new_graph(&ended_graphs);
    g->origin = of(h);
    g->id = ++captures;
    g->mode = mode;
    g->thread = &capture_mode;
    of(h)->captured = g;
    END(OK);
}
EXPORT int cuStreamEndCapture(void *h, graph **out) {
    BEGIN;
    graph *const g = of(h)->captured;
    if (g == NULL || g->origin != of(h)) END(INVALID);
    for (size_t i = 0; i < stream_count; ++i)
        if (streams[i]->captured == g) streams[i]->captured = NULL;
    *out = g->broken ? NULL : g;
    END(g->broken ? CAPTURE_BROKEN : OK);
}
static ino_t memory_at(const void *address) {
    for (size_t i = 0; i < map_count; ++i)
        if ((uintptr_t)address - maps[i].at < maps[i].size) return memories[maps[i].of].inode;
    return 0;
}
static void drop_operations(graph *g) {
    while (g->first != NULL) {
        operation *const o = g->first;
        g->first = o->next;
        free(o);
    }
    g->last = &g->first;
}
static void copy_operations(graph *to, const graph *from) {
    for (const operation *o = from->first; o != NULL; o = o->next) {
        operation *const made = *to->last = memcpy(malloc(sizeof *o), o, sizeof *o);
        made->memory[0] = memory_at(o->to);
        made->memory[1] = memory_at(o->from);
        to->last = &made->next;
    }
    *to->last = NULL;
}
EXPORT int cuGraphInstantiateWithFlags(graph **out, graph *g, unsigned long long flags) {
    MAY_FAIL;
    meet_in("instantiate");
    BEGIN;
    own(g);
    if (flags > 15) END(INVALID);
    for (const operation *o = g->first; o != NULL; o = o->next)
        if (o->fill > 0 && !reaches((uintptr_t)o->to)) END(INVALID);
    *out = new_graph(&ended_instances);
    (*out)->stack = stack_limit;
    copy_operations(*out, g);
    END(OK);
}
EXPORT int cuGraphExecUpdate_v2(graph *instance, graph *g, void *result) {
    (void)result;
    BEGIN;
    own(instance);
    own(g);
    drop_operations(instance);
    copy_operations(instance, g);
    END(OK);
}
EXPORT int cuGraphUpload(graph *g, void *h) { BEGIN; own(g); (void)of(h); END(OK); }
static bool is_bound(void) {
    char path[600];
    snprintf(path, sizeof path, "%s/bound", lane);
    return access(path, F_OK) == 0;
}
EXPORT int cuGraphLaunch(graph *g, void *h) {
    BEGIN;
    own(g);
    for (const operation *o = g->first; o != NULL; o = o->next) {
        if ((memory_at(o->to) != o->memory[0] || memory_at(o->from) != o->memory[1] || g->stack != stack_limit) && is_bound()) {
            fputs("an instance of other memory than is there, or of another stack\n", stderr);
            abort();
        }
        queue(of(h), *o);
    }
    END(OK);
}
static int end_graph(graph *g, graph **ended) {
    BEGIN;
    own(g);
    drop_operations(g);
    g->of_copy = NULL;
    g->ended = *ended;
    *ended = g;
    END(OK);
}
EXPORT int cuGraphDestroy(graph *g) { return end_graph(g, &ended_graphs); }
EXPORT int cuGraphExecDestroy(graph *g) { MAY_FAIL; return end_graph(g, &ended_instances); }
EXPORT int cuGraphGetNodes(graph *g, void **nodes, size_t *n) {
    BEGIN;
    own(g);
    *n = 0;
    for (const operation *o = g->first; o != NULL && nodes == NULL; o = o->next) ++*n;
    END(OK);
}

// Memory.
static uint64_t aligned(uint64_t size) {
    char *const raw = mmap(NULL, size + UNIT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return raw == MAP_FAILED ? 0 : ((uint64_t)(uintptr_t)raw + UNIT - 1) & ~(UNIT - 1);
}
static bool is_free(uint64_t at, uint64_t size) {
    FILE *const f = fopen("/proc/self/maps", "r");
    char line[600];
    bool free_there = f != NULL;
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        unsigned long a, b;
        if (sscanf(line, "%lx-%lx", &a, &b) == 2 && a < at + size && b > at) free_there = false;
    }
    if (f != NULL) fclose(f);
    return free_there;
}
EXPORT int cuMemAddressReserve(uint64_t *out, size_t size, size_t alignment, uint64_t wish, unsigned long long flags) {
    (void)alignment, (void)flags;
    ALIVE;
    pause_in("reserve");
    MAY_FAIL;
    *out = 0;
    if (wish != 0 && size >= HEEDED && is_free(wish, size)) {
        void *const at = mmap((void *)(uintptr_t)wish, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == (void *)(uintptr_t)wish) *out = wish;
    }
    if (*out == 0) *out = aligned(size);
    return *out != 0 ? OK : OUT_OF_MEMORY;
}
EXPORT int cuMemAddressFree(uint64_t at, size_t size) { return munmap((void *)(uintptr_t)at, size), OK; }
static void let_go(int i) {
    if (--memories[i].references > 0) return;
    close(memories[i].fd);
    have_together(&memories[i], -1);
}
static int keep(int fd) {
    struct stat s;
    int i = 1;
    while (i < MOST && memories[i].references > 0) ++i;
    if (i == MOST || fstat(fd, &s) != 0) return 0;
    memories[i] = (memory){fd, (uint64_t)s.st_size, 1, s.st_ino, false};
    have_together(&memories[i], 1);
    return i;
}
EXPORT int cuMemCreate(unsigned long long *out, size_t size, const void *p, unsigned long long f) {
    (void)p, (void)f;
    ALIVE;
    pthread_mutex_lock(&lock);
    if (getenv("STAND_IN_MIB") != NULL && all_memory() + size > (uint64_t)atoi(getenv("STAND_IN_MIB")) << 20) END(OUT_OF_MEMORY);
    const int fd = memfd_create("stand-in-memory", MFD_CLOEXEC);
    if (ftruncate(fd, (off_t)size) != 0) END(OUT_OF_MEMORY);
    *out = (unsigned long long)keep(fd);
    END(*out != 0 ? OK : OUT_OF_MEMORY);
}
EXPORT int cuMemRelease(unsigned long long h) { pthread_mutex_lock(&lock); let_go((int)h); END(OK); }
EXPORT int cuMemMap(uint64_t at, size_t size, size_t offset, unsigned long long h, unsigned long long f) {
    (void)f;
    MAY_FAIL;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < map_count; ++i)
        if (at < maps[i].at + maps[i].size && maps[i].at < at + size) END(INVALID);
    if (h >= MOST || memories[h].references == 0) END(INVALID);
    ++memories[h].references;
    map_together(at, 1);
    maps[map_count++] = (range){at, size, (int)h, offset, 0};
    END(OK);
}
EXPORT int cuMemUnmap(uint64_t at, size_t size) {
    MAY_FAIL;
    pthread_mutex_lock(&lock);
    const size_t before = map_count;
    for (size_t i = map_count; i-- > 0;) {
        if (maps[i].at < at || maps[i].at >= at + size) continue;
        if (map_together(maps[i].at, -1) == 0) mmap((void *)(uintptr_t)maps[i].at, maps[i].size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        let_go(maps[i].of);
        maps[i] = maps[--map_count];
    }
    END(map_count < before ? OK : INVALID);
}
EXPORT int cuMemSetAccess(uint64_t at, size_t size, const int *a, size_t n) {
    (void)n;
    MAY_FAIL;
    if (a[1] != device && !others[a[1]]) return INVALID;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < map_count; ++i)
        if (maps[i].at < at + size && at < maps[i].at + maps[i].size && (a[1] == device || maps[i].access == 0)) maps[i].access = a[2];
    END(OK);
}
EXPORT int cuMemGetAllocationPropertiesFromHandle(void *p, unsigned long long h) { return (void)p, h < MOST && memories[h].references > 0 ? OK : INVALID; }
EXPORT int cuMemGetAllocationGranularity(size_t *g, const void *p, int o) { return (void)p, (void)o, *g = UNIT, OK; }
EXPORT int cuMemRetainAllocationHandle(unsigned long long *out, void *at) {
    MAY_FAIL;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < map_count; ++i) {
        if ((uint64_t)(uintptr_t)at < maps[i].at || (uint64_t)(uintptr_t)at >= maps[i].at + maps[i].size) continue;
        ++memories[maps[i].of].references;
        *out = (unsigned long long)maps[i].of;
        END(OK);
    }
    END(INVALID);
}
EXPORT int cuMemExportToShareableHandle(int *fd, unsigned long long h, int type, unsigned long long f) { (void)type, (void)f; MAY_FAIL; if (memories[h].imported && getenv("STAND_IN_EXPORTS_ONCE") != NULL) return INVALID; *fd = dup(memories[h].fd); return *fd >= 0 ? OK : INVALID; }
EXPORT int cuMemImportFromShareableHandle(unsigned long long *out, void *fd, int type) {
    (void)type;
    MAY_FAIL;
    pthread_mutex_lock(&lock);
    const int own = dup((int)(intptr_t)fd);
    *out = own >= 0 ? (unsigned long long)keep(own) : 0;
    memories[*out].imported = true;
    END(*out != 0 ? OK : INVALID);
}
EXPORT int cuMemAlloc_v2(uint64_t *out, size_t size) {
    BEGIN;
    if (breaks_captures()) END(CAPTURE_UNSUPPORTED);
    void *const at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    plain[plain_count++] = (range){(uintptr_t)at, size, 0, 0, 3};
    *out = (uintptr_t)at;
    END(OK);
}
EXPORT int cuMemFree_v2(uint64_t at) { (void)at; BEGIN; END(OK); }
EXPORT int cuMemAllocPitch_v2(uint64_t *out, size_t *pitch, size_t w, size_t h, unsigned e) { (void)e; *pitch = (w + 511) & ~(size_t)511; return cuMemAlloc_v2(out, *pitch * h); }
EXPORT int cuMemGetAddressRange_v2(uint64_t *b, size_t *s, uint64_t a) { BEGIN; *b = a; *s = 1; END(OK); }
EXPORT int cuMemGetInfo_v2(size_t *f, size_t *t) {
    const char *const all = getenv("STAND_IN_ALL_MIB");
    BEGIN;
    const size_t most = all != NULL ? (size_t)atoi(all) << 20 : (size_t)60 << 30, taken = all_memory();
    *f = most > taken ? most - taken : 0;
    *t = (size_t)80 << 30;
    END(OK);
}
EXPORT int cuMemHostRegister_v2(void *p, size_t n, unsigned f) {
    (void)f;
    MAY_FAIL;
    BEGIN;
    if (breaks_captures()) END(CAPTURE_UNSUPPORTED);
    if (p == NULL || n == 0 || pinned_count == MOST) END(INVALID);
    for (size_t i = 0; i < pinned_count; ++i)
        if ((uintptr_t)p < pinned[i].at + pinned[i].size && pinned[i].at < (uintptr_t)p + n) END(ALREADY_REGISTERED);
    pinned[pinned_count++] = (range){(uintptr_t)p, n, 0, 0, 3};
    END(OK);
}
EXPORT int cuMemHostUnregister(void *p) {
    MAY_FAIL;
    BEGIN;
    finish(&default_stream, UINT64_MAX);
    for (size_t i = 0; i < stream_count; ++i) finish(streams[i], UINT64_MAX);
    for (size_t i = pinned_count; i-- > 0;)
        if (pinned[i].at == (uintptr_t)p) pinned[i] = pinned[--pinned_count];
    END_OF_WAIT;
}
static void *host[MOST];
EXPORT int cuMemHostAlloc(void **out, size_t n, unsigned f) {
    (void)f;
    BEGIN;
    size_t i = 0;
    while (host[i] != NULL) ++i;
    *out = host[i] = aligned_alloc(4096, (n + 4095) & ~(size_t)4095);
    END(OK);
}
EXPORT int cuMemHostGetFlags(unsigned *f, void *p) { (void)p; BEGIN; *f = 3; END(OK); }
EXPORT int cuMemHostGetDevicePointer_v2(uint64_t *out, void *p, unsigned f) {
    (void)f;
    BEGIN;
    *out = (uintptr_t)p;
    for (size_t i = 0; i < MOST; ++i)
        if (host[i] == p) END(OK);
    END(is_in(pinned, pinned_count, (uintptr_t)p) ? OK : INVALID);
}
EXPORT int cuMemFreeHost(void *p) {
    BEGIN;
    for (size_t i = 0; i < MOST; ++i) {
        if (host[i] != p) continue;
        host[i] = NULL;
        free(p);
        END(OK);
    }
    END(INVALID);
}
EXPORT int cuMemAllocManaged(uint64_t *out, size_t n, unsigned f) { (void)f; return cuMemAlloc_v2(out, n); }
EXPORT int cuPointerGetAttribute(void *out, int a, uint64_t p) {
    if (a == 1) *(void **)out = (void *)&primary;
    if (a != 2) return OK;
    // The type of memory: the GPU's, or the driver does not know it.
    pthread_mutex_lock(&lock);
    const bool known = (pool != NULL && p - (uintptr_t)pool < UNIT) || (reaches(p) && !is_in(pinned, pinned_count, p));
    *(unsigned *)out = 2;
    END(known ? OK : INVALID);
}
EXPORT int cuPointerGetAttributes(unsigned n, int *a, void **o, uint64_t p) { for (unsigned i = 0; i < n; ++i) cuPointerGetAttribute(o[i], a[i], p); return OK; }
EXPORT int cuIpcGetMemHandle(void *h, uint64_t p) { (void)h, (void)p; return 801; }
EXPORT int cuGetExportTable(const void **t, const void *id) { (void)id; *t = NULL; return INVALID; }
EXPORT int cuGetProcAddress(const char *s, void **f, int v, uint64_t k) { (void)s, (void)v, (void)k; *f = NULL; return NOT_FOUND; }
