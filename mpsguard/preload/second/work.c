#define _GNU_SOURCE
#include "second/work.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "second/objects.h"
#include "second/reasons.h"

#define BUCKETS 1024

struct work_stream {
    word handle;
    _Atomic uint64_t enqueued, over;
    _Atomic int under_way;  // calls
    _Atomic bool ended;
    bool of_thread;         // the default stream of a thread
    work_stream *next;      // of its bucket, newest first
    work_stream *older;     // of all
};

static _Atomic(work_stream *) buckets[BUCKETS];
static _Atomic(work_stream *) newest;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // for making and ending; reading needs none
// Of this thread: the name of its default stream, which is known to end with it; and what it has asked for last.
static __thread struct {
    bool known;
    word handle;
    work_stream *stream;
} mine __attribute__((tls_model("initial-exec")));
static _Atomic int changes;  // under way
static _Atomic bool closed;
static _Atomic int captures;  // under way

static size_t bucket_of(word handle) { return (handle * UINT64_C(0x9E3779B97F4A7C15)) >> 54; }

static work_stream *find(word handle) {
    for (work_stream *s = atomic_load_explicit(&buckets[bucket_of(handle)], memory_order_acquire); s != NULL; s = s->next)
        if (s->handle == handle && !s->ended) return s;
    return NULL;
}

static pthread_key_t ends;
static bool ends_are_told;

// The next thread may have the same addresses, and has another stream.
static void thread_ended(void *unused) {
    (void)unused;
    mine.known = false;
    mine.stream = NULL;
    work_stream_ended(WORD(&mine));
}

static void make_key(void) { ends_are_told = pthread_key_create(&ends, thread_ended) == 0; }

static word of_this_thread(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (mine.known) return WORD(&mine);
    pthread_once(&once, make_key);
    mine.known = ends_are_told && pthread_setspecific(ends, &mine) == 0;
    if (!mine.known) reasons_hold(REASON_no_memory);
    return WORD(&mine);
}

work_stream *work_stream_of(word handle, bool per_thread) {
    const bool of_thread = handle == 2 || (handle == 0 && per_thread);
    if (of_thread) handle = of_this_thread();
    else if (handle == 0) handle = 1;
    if (mine.stream != NULL && mine.handle == handle && !mine.stream->ended) return mine.stream;
    work_stream *found = find(handle);
    if (found == NULL) {
        pthread_mutex_lock(&lock);
        found = find(handle);
        if (found == NULL && (found = calloc(1, sizeof *found)) != NULL) {
            found->handle = handle;
            found->of_thread = of_thread;
            found->next = atomic_load_explicit(&buckets[bucket_of(handle)], memory_order_relaxed);
            found->older = atomic_load_explicit(&newest, memory_order_relaxed);
            atomic_store_explicit(&buckets[bucket_of(handle)], found, memory_order_release);
            atomic_store_explicit(&newest, found, memory_order_release);
        }
        pthread_mutex_unlock(&lock);
    }
    // Without a record nothing could be said of this stream's work.
    if (found == NULL) reasons_hold(REASON_no_memory);
    mine.handle = handle;
    mine.stream = found;
    return found;
}

void work_stream_ended(word handle) {
    pthread_mutex_lock(&lock);
    work_stream *const found = find(handle);
    // An idle one does for the next stream with that handle as well.
    if (found != NULL && work_enqueued(found) > atomic_load_explicit(&found->over, memory_order_acquire)) found->ended = true;
    pthread_mutex_unlock(&lock);
}

void work_capture_begins(void) { atomic_fetch_add(&captures, 1); }
void work_capture_ends(void) { atomic_fetch_sub(&captures, 1); }
bool work_is_captured(void) { return atomic_load(&captures) > 0; }

void work_close(void) { atomic_store(&closed, true); }
void work_open(void) { atomic_store(&closed, false); }

// Counted first and looked after that, as a takeover closes first and looks at the counts after that. It opens again when another copy
// is at hand.
static bool begin(_Atomic int *under_way, const driver_copy *copy) {
    atomic_fetch_add(under_way, 1);
    if (!atomic_load(&closed) && copies_at_hand() == copy) return true;
    atomic_fetch_sub(under_way, 1);
    return false;
}

bool work_begin_change(const driver_copy *copy) { return begin(&changes, copy); }
void work_end_change(void) { atomic_fetch_sub(&changes, 1); }

bool work_begin(const driver_copy *copy, work_stream *s) { return begin(s != NULL ? &s->under_way : &changes, copy); }

void work_count(work_stream *s) {
    if (s != NULL) atomic_fetch_add_explicit(&s->enqueued, 1, memory_order_acq_rel);
}

word work_handle(const work_stream *s) { return s->of_thread ? WORD(MG_STREAM_PER_THREAD) : s->handle; }

void work_end(work_stream *s) {
    if (s == NULL) work_end_change();
    else atomic_fetch_sub_explicit(&s->under_way, 1, memory_order_acq_rel);
}

uint64_t work_enqueued(const work_stream *s) { return s != NULL ? atomic_load_explicit(&s->enqueued, memory_order_acquire) : 0; }

bool work_was_over(const work_stream *s, uint64_t enqueued) { return atomic_load_explicit(&s->over, memory_order_acquire) >= enqueued; }

void work_is_over(work_stream *s, uint64_t enqueued) {
    if (s == NULL) return;
    uint64_t known = atomic_load_explicit(&s->over, memory_order_relaxed);
    while (known < enqueued && !atomic_compare_exchange_weak_explicit(&s->over, &known, enqueued, memory_order_acq_rel,
                                                                      memory_order_relaxed)) {}
}

// Streams are never taken out of the list, so the newest `count` of a mark are the same ones later: its oldest part.
work_mark work_mark_all(void) {
    work_stream *const first = atomic_load_explicit(&newest, memory_order_acquire);
    work_mark mark = {0, NULL};
    for (const work_stream *s = first; s != NULL; s = s->older) ++mark.count;
    mark.enqueued = mark.count > 0 ? malloc(mark.count * sizeof *mark.enqueued) : NULL;
    if (mark.enqueued == NULL) mark.count = 0;
    size_t i = mark.count;
    for (work_stream *s = first; s != NULL && i > 0; s = s->older) mark.enqueued[--i] = work_enqueued(s);
    return mark;
}

void work_mark_is_over(work_mark *mark) {
    work_stream *s = atomic_load_explicit(&newest, memory_order_acquire);
    size_t all = 0;
    for (const work_stream *each = s; each != NULL; each = each->older) ++all;
    for (; s != NULL && all > 0; s = s->older) {
        --all;
        if (all < mark->count) work_is_over(s, mark->enqueued[all]);
    }
}

void work_mark_free(work_mark *mark) {
    free(mark->enqueued);
    *mark = (work_mark){0, NULL};
}

uint64_t work_total(void) {
    uint64_t sum = 0;
    for (work_stream *s = atomic_load_explicit(&newest, memory_order_acquire); s != NULL; s = s->older)
        sum += work_enqueued(s);
    return sum;
}

static const struct timespec pause_between = {.tv_nsec = 1000000};

static bool is_under_way(void) {
    bool found = atomic_load(&changes) > 0;
    for (work_stream *s = atomic_load_explicit(&newest, memory_order_acquire); !found && s != NULL; s = s->older)
        found = atomic_load(&s->under_way) > 0;
    return found;
}

bool work_is_quiet(int milliseconds) {
    while (is_under_way()) {
        if (milliseconds-- <= 0) return false;
        nanosleep(&pause_between, NULL);
    }
    return true;
}

static bool is_busy(const work_stream *s) {
    return atomic_load_explicit(&s->enqueued, memory_order_acquire) > atomic_load_explicit(&s->over, memory_order_acquire);
}

bool work_is_idle(void) {
    bool busy = is_under_way();
    for (work_stream *s = atomic_load_explicit(&newest, memory_order_acquire); !busy && s != NULL; s = s->older) busy = is_busy(s);
    return !busy;
}

void work_all_over(void) {
    for (work_stream *s = atomic_load_explicit(&newest, memory_order_acquire); s != NULL; s = s->older) work_is_over(s, work_enqueued(s));
}

static bool any_of_threads_is_busy(void) {
    bool busy = false;
    for (work_stream *s = atomic_load_explicit(&newest, memory_order_acquire); !busy && s != NULL; s = s->older)
        busy = s->of_thread && !s->ended && is_busy(s);
    return busy;
}

void work_drain_threads(int milliseconds) {
    word event = 0;
    if (!any_of_threads_is_busy() || CALL(copies_at_hand(), cuEventCreate, WORD(&event), MG_EVENT_DISABLE_TIMING) != MG_SUCCESS) return;
    mg_result asked = CALL(copies_at_hand(), cuEventRecord, event, WORD(MG_STREAM_LEGACY));
    if (asked == MG_SUCCESS)
        while ((asked = CALL(copies_at_hand(), cuEventQuery, event)) == MG_NOT_READY && milliseconds-- > 0) nanosleep(&pause_between, NULL);
    // No call that enqueues is under way, so this is what there was before the event.
    for (work_stream *s = atomic_load_explicit(&newest, memory_order_acquire); asked == MG_SUCCESS && s != NULL; s = s->older)
        if (s->of_thread && !s->ended) work_is_over(s, work_enqueued(s));
    CALL(copies_at_hand(), cuEventDestroy_v2, event);
}

bool work_drain(int milliseconds) {
    for (work_stream *s = atomic_load_explicit(&newest, memory_order_acquire); s != NULL; s = s->older) {
        // The stream of a thread has a name in that thread alone, and one that is gone has none.
        if (is_busy(s) && (s->ended || s->of_thread)) return false;
        const uint64_t enqueued = work_enqueued(s);
        mg_result asked = MG_SUCCESS;
        while (is_busy(s) && (asked = CALL(copies_at_hand(), cuStreamQuery, objects_native(s->handle))) == MG_NOT_READY && milliseconds-- > 0)
            nanosleep(&pause_between, NULL);
        if (asked != MG_SUCCESS) return false;
        work_is_over(s, enqueued);
    }
    return work_is_idle();
}
