#include "ordered.h"

#include <stdlib.h>

#include "counters.h"
#include "placement.h"
#include "pools.h"
#include "registry.h"
#include "slab.h"
#include "streams.h"
#include "waiting.h"

// From so many streams on, records of streams are looked for that are of no use any more.
#define STREAMS_MANY 32

// Streams are told apart by their ids: a handle may be another stream's after its first one was destroyed.
static bool is_supported(const mg_driver *d) {
    return d->stream_get_id != NULL && d->stream_get_ctx != NULL && d->stream_synchronize != NULL &&
           d->device_get_mem_pool != NULL && d->event_create != NULL && d->event_record != NULL &&
           d->event_query != NULL && d->thread_exchange_stream_capture_mode != NULL;
}

static bool is_capturing(const process *p) { return atomic_load_explicit(&p->captures, memory_order_acquire) > 0; }

// The stream's id if it is one of the current context, and that is its device's primary one, which the driver's pools
// live with; 0 otherwise.
static uint64_t id_of(process *p, const mg_driver *d, mg_stream stream, context_entry *c) {
    mg_context of_stream = NULL;
    unsigned long long id = 0;
    if (!placement_context(p, d, c) || !c->primary) return 0;
    if (d->stream_get_ctx(stream, &of_stream) != MG_SUCCESS || of_stream != c->context) return 0;
    return d->stream_get_id(stream, &id) == MG_SUCCESS ? id : 0;
}

// Whether the stream is in no capture, and waits for none.
static bool is_free(const mg_driver *d, mg_stream stream) {
    int status = MG_CAPTURE_NONE;
    return d->stream_is_capturing != NULL && d->stream_is_capturing(stream, &status) == MG_SUCCESS && status == MG_CAPTURE_NONE;
}

// Memory that was freed, of a pool that we know.
static waiting_found take(process *p, const context_entry *c, mg_pool handle, uint64_t size, uint64_t id) {
    pthread_mutex_lock(&p->lock);
    const pool *const from = pools_entry(p, handle);
    const bool served = from != NULL && !from->plain;
    const waiting_found found = served ? waiting_take(p, c, from, size, streams_find(p, id)) : (waiting_found){0};
    pthread_mutex_unlock(&p->lock);
    return found;
}

static mg_address reuse(process *p, const mg_driver *d, const context_entry *c, mg_pool handle, uint64_t size,
                        uint64_t id) {
    if (atomic_load_explicit(&p->waiting_count, memory_order_acquire) == 0) return 0;
    waiting_found found = take(p, c, handle, size, id);
    if (found.address == 0 && found.in_doubt != NULL) {
        streams_ask(p, d, found.in_doubt);
        found = take(p, c, handle, size, id);
    }
    if (found.address == 0) return 0;
    counter_add(size <= SLAB_MOST ? COUNT_placed_small : COUNT_placed);
    counter_add(COUNT_ordered_reused);
    return found.address;
}

// New memory, after giving up what the pool has no use for.
static mg_address make(process *p, const mg_driver *d, const context_entry *c, pool *from, uint64_t size) {
    placement_drain(p, d);
    if (atomic_load_explicit(&p->waiting_count, memory_order_acquire) > 0) {
        streams_ask(p, d, NULL);
        if (size <= SLAB_MOST) waiting_return_small(p, from);
        pthread_mutex_lock(&p->lock);
        const uint64_t most = pools_most(from, size);
        pthread_mutex_unlock(&p->lock);
        waiting_release(p, d, from, most > size ? most - size : 0);
    }
    const mg_address address = placement_serve(p, d, c, from, size);
    if (address == 0) return 0;
    pthread_mutex_lock(&p->lock);
    pools_take(from, size);
    pthread_mutex_unlock(&p->lock);
    return address;
}

mg_address ordered_allocate(const mg_driver *d, uint64_t size, mg_pool handle, mg_stream stream, const void *caller) {
    context_entry c = {0};
    process *const p = process_get();
    if (p == NULL) return 0;
    // A stream that is captured can be asked whether it is, and nothing more: cuStreamGetId, for one, breaks the capture.
    const bool captured = is_capturing(p) && !is_free(d, stream);
    counter why = captured ? COUNT_plain_capture : is_supported(d) ? COUNTER_COUNT : COUNT_plain_async;
    const uint64_t id = why == COUNTER_COUNT ? id_of(p, d, stream, &c) : 0;
    if (why == COUNTER_COUNT && c.context == NULL) return 0;
    if (why == COUNTER_COUNT) why = placement_objection(p, d, &c, size, caller);
    if (why == COUNTER_COUNT && id == 0) why = COUNT_plain_stream;
    if (why == COUNTER_COUNT && handle == NULL && d->device_get_mem_pool(&handle, c.device) != MG_SUCCESS)
        why = COUNT_plain_pool;
    mg_address address = why == COUNTER_COUNT ? reuse(p, d, &c, handle, size, id) : 0;
    if (why == COUNTER_COUNT && address == 0) {
        pool *const from = pools_find(p, d, handle, c.device);
        if (from == NULL) why = COUNT_plain_pool;
        else address = make(p, d, &c, from, size);
    }
    if (why != COUNTER_COUNT) counter_add(why);
    if (address != 0) counter_add(COUNT_ordered);
    return address;
}

// Finds the allocation that starts at `address`, or at least might. The caller holds the lock.
static region *find(process *p, mg_address address) {
    region *const r = registry_find(p, address);
    return r != NULL && (r->slab != NULL || (r->user == address && !r->aside)) ? r : NULL;
}

// A free in stream order, as far as it has come.
typedef struct {
    waiting *record;  // NULL: there is no host memory for one
    mark *at;         // to be recorded in the stream, or NULL
} begun;

// Takes the allocation out of use. False if there is none.
static bool begin(process *p, const mg_driver *d, mg_address address, uint64_t id, begun *out) {
    waiting *const w = malloc(sizeof *w);
    *out = (begun){0};
    pthread_mutex_lock(&p->lock);
    region *const r = find(p, address);
    stream *s = id != 0 && r != NULL ? streams_find(p, id) : NULL;
    if (id != 0 && r != NULL && s == NULL) {
        if (p->stream_count >= STREAMS_MANY) waiting_leave_streams(p);
        s = streams_make(p, id);
    }
    const bool recorded = w != NULL && (s != NULL || id == 0);
    const bool ours = r != NULL && (!recorded || waiting_begin(p, w, r, address, s));
    if (ours && recorded) {
        out->record = w;
        if (s != NULL) out->at = streams_take_mark(p, d, s, w->number);
    }
    pthread_mutex_unlock(&p->lock);
    if (out->record == NULL) free(w);
    if (ours && !recorded) counter_add(COUNT_ordered_lost);
    return ours;
}

// Ends it: it was put behind the stream's work (by an event or without), or the driver refused.
static void end(process *p, const begun *b, bool done, bool recorded) {
    waiting *const w = b->record;
    pthread_mutex_lock(&p->lock);
    // The region may have gone with its context meanwhile.
    const bool there = registry_find(p, w->address) == w->region;
    if (b->at != NULL) streams_publish(b->at, done && recorded ? w->number : 0);
    if (!there) waiting_lose(p, w);
    else if (done) waiting_enter(p, w);
    else waiting_undo(p, w);
    pthread_mutex_unlock(&p->lock);
    if (!there || !done) free(w);
    if (done) counter_add(COUNT_freed);
}

// Whether the driver refuses a free of memory in the stream that no graph allocated.
static bool is_captured(const mg_driver *d, mg_stream stream) {
    int status = MG_CAPTURE_NONE;
    return d->stream_is_capturing != NULL &&
           d->stream_is_capturing(stream, &status) == MG_SUCCESS && status != MG_CAPTURE_NONE;
}

static bool is_ours(process *p, mg_address address, bool in_order) {
    pthread_mutex_lock(&p->lock);
    const region *const r = find(p, address);
    const bool ours = r != NULL && (r->pool != NULL || !in_order);
    pthread_mutex_unlock(&p->lock);
    return ours;
}

bool ordered_free(const mg_driver *d, mg_address address, mg_stream stream, mg_result *result) {
    context_entry c = {0};
    begun b;
    bool recorded = false;
    process *const p = process_if_any();
    *result = MG_SUCCESS;
    if (p == NULL || !is_supported(d)) return false;
    if (is_capturing(p) && (!is_ours(p, address, false) || is_captured(d, stream))) return false;
    const int mode = streams_relax(d);
    const uint64_t id = id_of(p, d, stream, &c);
    streams_unrelax(d, mode);
    if (id == 0) {
        // Of a stream elsewhere there are no events: it is waited for, before anything is taken out of use.
        if (!is_ours(p, address, false)) return false;
        if ((*result = streams_wait(d, stream)) != MG_SUCCESS) return true;
    }
    if (!begin(p, d, address, id, &b)) return false;
    if (b.record == NULL) return true;
    if (b.at != NULL) *result = streams_record(d, b.at, stream, &recorded);
    if (id != 0 && *result == MG_SUCCESS && !recorded) counter_add(COUNT_ordered_unmarked);
    end(p, &b, *result == MG_SUCCESS, recorded);
    return true;
}

bool ordered_free_at_once(const mg_driver *d, mg_address address) {
    begun b;
    process *const p = process_if_any();
    if (p == NULL || !is_ours(p, address, true) || !begin(p, d, address, 0, &b)) return false;
    if (b.record != NULL) end(p, &b, true, false);
    return true;
}

uint64_t ordered_point(void) {
    process *const p = process_if_any();
    if (p == NULL || (atomic_load_explicit(&p->waiting_count, memory_order_acquire) == 0 &&
                      !atomic_load_explicit(&p->emptied, memory_order_acquire)))
        return 0;
    pthread_mutex_lock(&p->lock);
    const uint64_t point = p->frees;
    pthread_mutex_unlock(&p->lock);
    return point;
}

static void reached(process *p, const mg_driver *d, ordered_kind kind, mg_stream stream, mg_context context,
                    uint64_t point) {
    context_entry c = {0};
    unsigned long long id = 0;
    if (kind == ORDERED_EVENT || !is_supported(d)) return;
    if (kind == ORDERED_CONTEXT && (!placement_context(p, d, &c) || !c.primary)) return;
    if (kind == ORDERED_CONTEXT && context != NULL && context != c.context) return;
    if (kind == ORDERED_STREAM && d->stream_get_id(stream, &id) != MG_SUCCESS) return;
    pthread_mutex_lock(&p->lock);
    struct stream *const one = kind == ORDERED_STREAM ? streams_find(p, id) : NULL;
    if (kind == ORDERED_CONTEXT || one != NULL) streams_reach(p, one, point);
    pthread_mutex_unlock(&p->lock);
}

void ordered_synchronized(const mg_driver *d, ordered_kind kind, mg_stream stream, mg_context context, uint64_t point) {
    process *const p = process_if_any();
    if (p == NULL || point == 0) return;
    reached(p, d, kind, stream, context, point);
    if (is_capturing(p) || !waiting_exceeds(p)) return;
    streams_ask(p, d, NULL);
    waiting_release_excess(p, d);
}

void ordered_trim(const mg_driver *d, mg_pool handle, uint64_t most) {
    process *const p = process_if_any();
    if (p == NULL || !is_supported(d) || is_capturing(p)) return;
    pthread_mutex_lock(&p->lock);
    pool *const of = pools_entry(p, handle);
    pthread_mutex_unlock(&p->lock);
    if (of == NULL) return;
    streams_ask(p, d, NULL);
    waiting_release(p, d, of, most);
}

void ordered_forget(process *p, mg_context context, mg_device device) {
    pthread_mutex_lock(&p->lock);
    waiting_forget(p, context, device);
    if (context == NULL) streams_forget(p);
    pthread_mutex_unlock(&p->lock);
}
