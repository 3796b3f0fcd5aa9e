// The stub's streams, events, captures and memory pools. Work is what a test enqueues by stub_work; it is over when
// something waits for it, or the test says so.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "stub_internal.h"

enum { STATES = 8192, HANDLES = 512, USES = 8192, EVENTS = 4096, POOLS = 64, CONTEXTS = 64 };
enum { NOT_READY = 600, UNSUPPORTED = 900, INVALIDATED = 901, IMPLICIT = 906, INVALID = 1, WRONG_CONTEXT = 201, WRONG_HANDLE = 400 };

// A stream's own part, which outlives its handle: work that was enqueued goes on.
typedef struct {
    int context;
    long enqueued, over;
    bool captured, broken;
    int mode;            // of the capture
    const void *thread;  // in which it began
} state;

static state states[STATES];  // 0: none. Its index is its id.
static int state_count = 1;
// A handle's value is used again after its stream was destroyed, as with the driver.
static struct { int state; } handles[HANDLES];
static int legacy[CONTEXTS];
static __thread int own[CONTEXTS];
static struct { int state; long number; uint64_t at; } uses[USES];
static size_t use_count;
static struct { bool made; int context, state; long number; } events[EVENTS];
static int event_count = 1;
static struct { bool made, destroyed; uint64_t threshold, used, high; } pools[POOLS] = {{0}, {.made = true}};
static int pool_count = 2, current_pool = 1;
static __thread int mode;

static int new_state(int context) {
    if (state_count == STATES) abort();
    states[state_count].context = context;
    return state_count++;
}

// The stream behind a handle, or 0. The caller holds the lock.
static int state_of(void *stream, bool per_thread) {
    const uintptr_t value = stream == NULL ? (per_thread ? 2 : 1) : (uintptr_t)stream;
    if (value <= 2) {
        int *const of = value == 1 ? &legacy[current_context] : &own[current_context];
        if (!is_live_context(current_context)) return 0;
        if (*of == 0 || states[*of].context != current_context) *of = new_state(current_context);
        return *of;
    }
    for (size_t i = 0; i < HANDLES; ++i)
        if (stream == &handles[i]) return handles[i].state;
    return 0;
}

static void finish(int of, long number) {
    if (states[of].over < number) states[of].over = number;
    for (size_t i = use_count; i-- > 0;)
        if (uses[i].state == of && uses[i].number <= number) uses[i] = uses[--use_count];
}

void streams_finish(int context) {
    for (int i = 1; i < state_count; ++i)
        if (states[i].context == context) finish(i, states[i].enqueued);
}

void streams_end(int context) {
    streams_finish(context);
    for (size_t i = 0; i < HANDLES; ++i)
        if (handles[i].state != 0 && states[handles[i].state].context == context) handles[i].state = 0;
    for (int i = 1; i < event_count; ++i)
        if (events[i].context == context) events[i].made = false;
    legacy[context] = 0;
}

bool streams_use(uint64_t start, uint64_t end) {
    for (size_t i = 0; i < use_count; ++i)
        if (uses[i].at >= start && uses[i].at < end) return true;
    return false;
}

void streams_enqueue(int of, uint64_t at) {
    size_t i = 0;
    while (i < use_count && !(uses[i].state == of && uses[i].at == at)) ++i;
    if (i == USES) abort();
    if (i == use_count) ++use_count;
    uses[i].state = of;
    uses[i].number = ++states[of].enqueued;
    uses[i].at = at;
}
int streams_legacy(void) { return state_of(NULL, false); }

EXPORT void stub_work(void *stream, uint64_t address) {
    pthread_mutex_lock(&lock);
    const int of = state_of(stream, false);
    if (of == 0) abort();
    streams_enqueue(of, address);
    pthread_mutex_unlock(&lock);
}
EXPORT void stub_finish(void *stream) {
    pthread_mutex_lock(&lock);
    const int of = state_of(stream, false);
    finish(of, states[of].enqueued);
    pthread_mutex_unlock(&lock);
}
EXPORT void stub_finish_all(void) {
    pthread_mutex_lock(&lock);
    for (int i = 1; i < state_count; ++i) finish(i, states[i].enqueued);
    pthread_mutex_unlock(&lock);
}

EXPORT stub_point stub_now(void *stream) {
    pthread_mutex_lock(&lock);
    const int of = state_of(stream, false);
    const stub_point now = {of, states[of].enqueued};
    pthread_mutex_unlock(&lock);
    return now;
}
EXPORT int stub_is_past(stub_point point) { return states[point.stream].over >= point.number; }

EXPORT int cuStreamCreate(void **stream, unsigned flags) {
    ENTER;
    (void)flags;
    if (!is_live_context(current_context)) return WRONG_CONTEXT;
    pthread_mutex_lock(&lock);
    size_t i = 0;
    while (handles[i].state != 0) ++i;
    handles[i].state = new_state(current_context);
    *stream = &handles[i];
    pthread_mutex_unlock(&lock);
    return 0;
}
EXPORT int cuStreamDestroy_v2(void *stream) {
    ENTER;
    pthread_mutex_lock(&lock);
    const int of = state_of(stream, false);
    if (of != 0 && states[of].captured) states[of].captured = false, --capturing;
    for (size_t i = 0; i < HANDLES; ++i)
        if (stream == &handles[i]) handles[i].state = 0;
    pthread_mutex_unlock(&lock);
    return of != 0 ? 0 : WRONG_HANDLE;
}
// What breaks a capture if it is asked of the stream that is captured.
static int breaks(int of) {
    violations += states[of].captured;
    return states[of].captured ? UNSUPPORTED : 0;
}
EXPORT int cuStreamGetId(void *stream, unsigned long long *id) {
    ENTER;
    pthread_mutex_lock(&lock);
    const int of = state_of(stream, false), broken = breaks(of);
    pthread_mutex_unlock(&lock);
    *id = (unsigned long long)of;
    return broken != 0 ? broken : of != 0 ? 0 : WRONG_HANDLE;
}
EXPORT int cuStreamGetCtx(void *stream, void **context) {
    ENTER;
    pthread_mutex_lock(&lock);
    const int of = state_of(stream, false), broken = breaks(of);
    pthread_mutex_unlock(&lock);
    *context = (void *)(intptr_t)states[of].context;
    return broken != 0 ? broken : of != 0 ? 0 : WRONG_CONTEXT;
}

EXPORT int cuThreadExchangeStreamCaptureMode(int *other) {
    ENTER;
    const int before = mode;
    mode = *other;
    *other = before;
    return 0;
}
// What a thread may not do, in its mode, during captures of its own and of others, and what breaks them (measured with 580).
int streams_refuse(void) {
    bool refused = false;
    pthread_mutex_lock(&lock);
    for (int i = 1; i < state_count && mode != 2; ++i) {
        state *const s = &states[i];
        const bool prohibits = s->captured && (s->thread == &mode ? s->mode != 2 : mode == 0 && s->mode == 0);
        if (prohibits) refused = s->broken = true;
    }
    pthread_mutex_unlock(&lock);
    return refused ? UNSUPPORTED : 0;
}
// The preload may not do it: the capture would break.
static int unsafe(void) {
    if (capturing == 0 || streams_refuse() == 0) return 0;
    ++violations;
    return UNSUPPORTED;
}
static int capture(void *stream, bool per_thread, bool begin, int how) {
    pthread_mutex_lock(&lock);
    const int of = state_of(stream, per_thread);
    const bool allowed = of != 0 && states[of].captured != begin, broken = allowed && !begin && states[of].broken;
    if (allowed) {
        states[of].captured = begin, capturing += begin ? 1 : -1;
        states[of].mode = how, states[of].thread = &mode, states[of].broken = false;
    }
    pthread_mutex_unlock(&lock);
    return allowed ? broken ? INVALIDATED : 0 : 401;
}
#define BEGIN(name, per_thread, parameters, how) \
    EXPORT int name parameters {                 \
        ENTER;                                   \
        return capture(stream, per_thread, true, how); \
    }
BEGIN(cuStreamBeginCapture, false, (void *stream), 0)
BEGIN(cuStreamBeginCapture_ptsz, true, (void *stream), 0)
BEGIN(cuStreamBeginCapture_v2, false, (void *stream, int how), how)
BEGIN(cuStreamBeginCapture_v2_ptsz, true, (void *stream, int how), how)
#define END(name, per_thread)                      \
    EXPORT int name(void *stream, void **graph) {  \
        ENTER;                                     \
        *graph = NULL;                             \
        return capture(stream, per_thread, false, 0); \
    }
END(cuStreamEndCapture, false)
END(cuStreamEndCapture_ptsz, true)
EXPORT int cuStreamIsCapturing(void *stream, int *status) {
    ENTER;
    pthread_mutex_lock(&lock);
    const int of = state_of(stream, false);
    *status = states[of].captured;
    const int result = of == 0 ? WRONG_HANDLE : of == legacy[current_context] && capturing > 0 ? IMPLICIT : 0;
    pthread_mutex_unlock(&lock);
    return result;
}

static int synchronize(void *stream, bool per_thread) {
    if (unsafe() != 0) return UNSUPPORTED;
    pthread_mutex_lock(&lock);
    const int of = state_of(stream, per_thread);
    finish(of, states[of].enqueued);
    pthread_mutex_unlock(&lock);
    return of != 0 ? 0 : WRONG_HANDLE;
}
EXPORT int cuStreamSynchronize(void *stream) {
    ENTER;
    return synchronize(stream, false);
}
EXPORT int cuStreamSynchronize_ptsz(void *stream) {
    ENTER;
    return synchronize(stream, true);
}

EXPORT int cuEventCreate(void **event, unsigned flags) {
    ENTER;
    (void)flags;
    pthread_mutex_lock(&lock);
    if (event_count == EVENTS) abort();
    events[event_count].made = true;
    events[event_count].context = current_context;
    *event = (void *)(intptr_t)event_count++;
    pthread_mutex_unlock(&lock);
    return 0;
}
EXPORT int cuEventRecord(void *event, void *stream) {
    ENTER;
    const intptr_t e = (intptr_t)event;
    pthread_mutex_lock(&lock);
    const int of = state_of(stream, false);
    const bool right = e > 0 && e < event_count && events[e].made && of != 0 && events[e].context == states[of].context;
    if (right) {
        events[e].state = of;
        events[e].number = states[of].enqueued;
    } else {
        ++violations;
    }
    pthread_mutex_unlock(&lock);
    return right ? 0 : WRONG_HANDLE;
}
EXPORT int cuEventQuery(void *event) {
    ENTER;
    if (unsafe() != 0) return UNSUPPORTED;
    const intptr_t e = (intptr_t)event;
    pthread_mutex_lock(&lock);
    const bool made = events[e].made;
    const bool over = states[events[e].state].over >= events[e].number;
    violations += !made;  // an event of a context that is gone
    pthread_mutex_unlock(&lock);
    return !made ? WRONG_HANDLE : over ? 0 : NOT_READY;
}
EXPORT int cuEventSynchronize(void *event) {
    ENTER;
    if (unsafe() != 0) return UNSUPPORTED;
    pthread_mutex_lock(&lock);
    finish(events[(intptr_t)event].state, events[(intptr_t)event].number);
    pthread_mutex_unlock(&lock);
    return 0;
}

// Handles of pools begin where no index of anything else is.
#define POOL_HANDLES ((intptr_t)0x10000)

void *pool_handle(int pool) { return pool > 0 ? (void *)(POOL_HANDLES + pool) : NULL; }
static int pool_behind(void *handle) {
    const intptr_t i = (intptr_t)handle - POOL_HANDLES;
    return i > 0 && i < POOLS && pools[i].made && !pools[i].destroyed ? (int)i : 0;
}
void pool_add(int pool, size_t size) {
    pools[pool].used += size;
    if (pools[pool].used > pools[pool].high) pools[pool].high = pools[pool].used;
}
void pool_subtract(int pool, size_t size) { pools[pool].used -= size; }

EXPORT int cuDeviceGetDefaultMemPool(void **pool, int device) {
    ENTER;
    (void)device;
    *pool = pool_handle(1);
    return 0;
}
EXPORT int cuDeviceGetMemPool(void **pool, int device) {
    ENTER;
    (void)device;
    *pool = pool_handle(current_pool);
    return 0;
}
EXPORT int cuDeviceSetMemPool(int device, void *pool) {
    ENTER;
    (void)device;
    current_pool = pool_behind(pool);
    return 0;
}
EXPORT int cuMemPoolCreate(void **pool, const void *properties) {
    ENTER;
    (void)properties;
    pthread_mutex_lock(&lock);
    int i = 2;
    // The handle of one that was destroyed is used again once nothing lives of it.
    while (i < pool_count && !(pools[i].destroyed && pools[i].used == 0)) ++i;
    if (i == POOLS) abort();
    if (i == pool_count) ++pool_count;
    memset(&pools[i], 0, sizeof pools[i]);
    pools[i].made = true;
    *pool = pool_handle(i);
    pthread_mutex_unlock(&lock);
    return 0;
}
EXPORT int cuMemPoolDestroy(void *pool) {
    ENTER;
    const int i = pool_behind(pool);
    if (i <= 1) return INVALID;
    pools[i].destroyed = true;
    if (current_pool == i) current_pool = 1;
    return 0;
}
EXPORT int cuMemPoolSetAccess(void *pool, const void *access, size_t count) {
    ENTER;
    (void)access, (void)count;
    return pool_behind(pool) != 0 ? 0 : INVALID;
}
EXPORT int cuMemPoolSetAttribute(void *pool, int attribute, void *value) {
    ENTER;
    const int i = pool_behind(pool);
    if (i == 0) return INVALID;
    if (attribute < 4) return 0;
    if (attribute == 4) return pools[i].threshold = *(uint64_t *)value, 0;
    if (attribute != 6 && attribute != 8) return INVALID;
    return *(uint64_t *)value == 0 ? pools[i].high = pools[i].used, 0 : INVALID;
}
EXPORT int cuMemPoolGetAttribute(void *pool, int attribute, void *value) {
    ENTER;
    const int i = pool_behind(pool);
    if (i == 0) return INVALID;
    if (attribute < 4) return *(int *)value = 1, 0;
    *(uint64_t *)value = attribute == 4 ? pools[i].threshold : attribute % 2 == 0 ? pools[i].high : pools[i].used;
    return 0;
}
EXPORT int cuMemPoolTrimTo(void *pool, size_t most) {
    ENTER;
    (void)most;
    return pool_behind(pool) != 0 ? 0 : INVALID;
}

static int allocate_from(uint64_t *address, size_t size, int pool, void *stream, bool per_thread) {
    pthread_mutex_lock(&lock);
    const int of = state_of(stream, per_thread);
    pthread_mutex_unlock(&lock);
    return of == 0 ? WRONG_HANDLE : pool == 0 ? INVALID : allocate(address, size, pool);
}
// A stream that is being captured takes only what a graph allocated, of which the stub has none.
static int release_in(uint64_t address, void *stream, bool per_thread) {
    pthread_mutex_lock(&lock);
    const int of = state_of(stream, per_thread);
    pthread_mutex_unlock(&lock);
    if (of == 0) return WRONG_HANDLE;
    return states[of].captured ? INVALID : release(address, false);
}
#define ASYNC(suffix, per_thread)                                                               \
    EXPORT int cuMemAllocAsync##suffix(uint64_t *address, size_t size, void *stream) {          \
        ENTER;                                                                                  \
        return allocate_from(address, size, current_pool, stream, per_thread);                  \
    }                                                                                           \
    EXPORT int cuMemAllocFromPoolAsync##suffix(uint64_t *address, size_t size, void *pool, void *stream) { \
        ENTER;                                                                                  \
        return allocate_from(address, size, pool_behind(pool), stream, per_thread);             \
    }                                                                                           \
    EXPORT int cuMemFreeAsync##suffix(uint64_t address, void *stream) {                         \
        ENTER;                                                                                  \
        return release_in(address, stream, per_thread);                                         \
    }
ASYNC(, false)
ASYNC(_ptsz, true)
