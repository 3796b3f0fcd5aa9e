#include "waiting.h"

#include <stdlib.h>

#include "counters.h"
#include "pools.h"
#include "registry.h"
#include "slab.h"

// Four lists to each power of two, so that one list has sizes within a quarter of each other.
static size_t list_of(uint64_t bytes) {
    const unsigned top = 63 - (unsigned)__builtin_clzll(bytes | 8);
    const size_t index = 4 * (size_t)top + (bytes >> (top - 2) & 3);
    return index < PROCESS_WAITING ? index : PROCESS_WAITING - 1;
}

static bool is_over(const waiting *w) { return w->stream == NULL || w->number <= w->stream->over; }

// A counted free less in its stream; the record may be of no use any more (streams_forget).
static void leave_stream(waiting *w) {
    if (w->stream != NULL && w->stream->waiting > 0) --w->stream->waiting;
    w->stream = NULL;
}

bool waiting_begin(process *p, waiting *w, region *r, mg_address address, stream *s) {
    *w = (waiting){.region = r, .of = r->pool, .address = address, .bytes = r->at.memory, .stream = s, .number = ++p->frees};
    const uint64_t size = r->slab != NULL ? slab_set_aside(r, address, &w->bytes) : r->size;
    if (size == 0) return false;
    if (r->slab == NULL) r->aside = true;
    if (s != NULL) ++s->waiting;
    if (w->of != NULL) {
        pools_return(w->of, size);
        w->of->waiting += w->bytes;
    } else {
        p->waiting_without_pool += w->bytes;
    }
    atomic_fetch_add_explicit(&p->waiting_count, 1, memory_order_release);
    return true;
}

// No longer counted; what becomes of the memory is the caller's affair.
static void leave(process *p, waiting *w) {
    if (w->of != NULL) w->of->waiting -= w->bytes;
    else p->waiting_without_pool -= w->bytes;
    leave_stream(w);
    atomic_fetch_sub_explicit(&p->waiting_count, 1, memory_order_release);
}

void waiting_enter(process *p, waiting *w) {
    waiting **const list = &p->waiting[list_of(w->bytes)];
    w->next = *list;
    *list = w;
}

void waiting_undo(process *p, waiting *w) {
    region *const r = w->region;
    leave(p, w);
    const uint64_t size = r->slab != NULL ? slab_take_back(r, w->address, 0) : r->size;
    r->aside = false;
    if (w->of != NULL) pools_take(w->of, size);
}

void waiting_lose(process *p, waiting *w) {
    leave_stream(w);
    if (w->of == NULL) p->waiting_without_pool -= w->bytes;
    atomic_fetch_sub_explicit(&p->waiting_count, 1, memory_order_release);
}

waiting_found waiting_take(process *p, const context_entry *c, const pool *from, uint64_t size, const stream *s) {
    waiting_found found = {0};
    const bool small = size <= SLAB_MOST;
    const uint64_t least = layout_round_up(size, small ? p->set.alignment : p->device[c->device].granularity);
    if (least == 0) return found;
    // Of a region an eighth may lie idle; of a slab nothing, which is cut anew for another size.
    const uint64_t most = small ? least : least + least / 8;
    waiting **best = NULL;
    for (size_t i = list_of(least); i <= list_of(most); ++i) {
        for (waiting **link = &p->waiting[i]; *link != NULL; link = &(*link)->next) {
            const waiting *const w = *link;
            if (w->bytes < least || w->bytes > most || w->of != from || w->region->context != c->context)
                continue;
            if (w->stream != s && !is_over(w)) found.in_doubt = w->stream;
            else if (best == NULL || w->bytes < (*best)->bytes) best = link;
            if (best != NULL && (*best)->bytes == least) goto chosen;
        }
    }
    if (best == NULL) return found;
chosen:;
    waiting *const w = *best;
    *best = w->next;
    leave(p, w);
    if (small) slab_take_back(w->region, w->address, size);
    else region_use_again(p, w->region, size);
    pools_take(w->of, size);
    found.address = small ? w->address : w->region->user;
    free(w);
    return found;
}

// Takes one out of the lists that is over and of that pool (NULL: of none), the greatest first.
static waiting *take_over(process *p, const pool *of, size_t first, size_t last) {
    for (size_t i = last + 1; i-- > first;) {
        for (waiting **link = &p->waiting[i]; *link != NULL; link = &(*link)->next) {
            waiting *const w = *link;
            if (w->of != of || !is_over(w)) continue;
            *link = w->next;
            leave(p, w);
            return w;
        }
    }
    return NULL;
}

void waiting_return_small(process *p, const pool *of) {
    pthread_mutex_lock(&p->lock);
    for (waiting *w; (w = take_over(p, of, 0, list_of(SLAB_MOST))) != NULL; free(w)) slab_return(p, w->region, w->address);
    pthread_mutex_unlock(&p->lock);
}

// One piece of memory less; false if there was none to give back, or no more than `most` is reserved of the pool.
// `most` NULL: its release threshold.
static bool release_one(process *p, const mg_driver *d, const pool *of, const uint64_t *most) {
    region *r = NULL;
    pthread_mutex_lock(&p->lock);
    const bool wanted = of == NULL || of->reserved > (most != NULL ? *most : of->threshold);
    waiting *const w = wanted ? take_over(p, of, 0, PROCESS_WAITING - 1) : NULL;
    if (w != NULL && w->region->slab != NULL) {
        slab_return(p, w->region, w->address);
    } else if (w != NULL) {
        r = w->region;
        region_withdraw(p, r);
    }
    pthread_mutex_unlock(&p->lock);
    if (r != NULL) region_free(p, d, r);
    if (w != NULL) counter_add(COUNT_ordered_released);
    free(w);
    return w != NULL;
}

static bool release(process *p, const mg_driver *d, const pool *of, const uint64_t *most) {
    // Unmapping is not tried while it might break a capture.
    if (atomic_load_explicit(&p->captures, memory_order_acquire) > 0) return false;
    bool any = false;
    while (release_one(p, d, of, most)) any = true;
    if (of != NULL) slab_release_excess(p, d, of, most);
    if (any) slab_tidy(p, d);
    return any;
}

bool waiting_release(process *p, const mg_driver *d, const pool *of, uint64_t most) { return release(p, d, of, &most); }

bool waiting_release_all(process *p, const mg_driver *d) {
    bool any = waiting_release(p, d, NULL, 0);
    for (size_t i = 0; i < PROCESS_POOLS; ++i) any |= waiting_release(p, d, &p->pools[i], 0);
    return any;
}

bool waiting_release_excess(process *p, const mg_driver *d) {
    // Before the look: a slab that becomes empty meanwhile is seen by the next one.
    atomic_store_explicit(&p->emptied, false, memory_order_release);
    bool any = waiting_release(p, d, NULL, 0);
    for (size_t i = 0; i < PROCESS_POOLS; ++i) any |= release(p, d, &p->pools[i], NULL);
    return any;
}

bool waiting_exceeds(process *p) {
    pthread_mutex_lock(&p->lock);
    bool exceeds = p->waiting_without_pool > 0 || atomic_load_explicit(&p->emptied, memory_order_acquire);
    for (size_t i = 0; i < PROCESS_POOLS && !exceeds; ++i)
        exceeds = p->pools[i].waiting > 0 && p->pools[i].reserved > p->pools[i].threshold;
    pthread_mutex_unlock(&p->lock);
    return exceeds;
}

void waiting_leave_streams(process *p) {
    for (size_t i = 0; i < PROCESS_WAITING; ++i)
        for (waiting *w = p->waiting[i]; w != NULL; w = w->next)
            if (is_over(w)) leave_stream(w);
}

void waiting_forget(process *p, mg_context context, mg_device device) {
    for (size_t i = 0; i < PROCESS_WAITING; ++i) {
        for (waiting **link = &p->waiting[i]; *link != NULL;) {
            waiting *const w = *link;
            if (!region_is_of(w->region, context, device)) {
                link = &w->next;
                continue;
            }
            *link = w->next;
            leave(p, w);
            free(w);
        }
    }
}
