#include "slab.h"

#include <stdlib.h>

#include "counters.h"
#include "registry.h"

#define SLAB_BYTES ((uint64_t)2 << 20)
#define UNITS_MOST 8192
// On the size of an allocation that is to be freed: when there is time, and after the wait that is under way.
#define DYING ((uint32_t)1 << 31)
#define LEAVING ((uint32_t)1 << 30)
// On that of a dying one: the number of the drain that waits for its work, or 0.
#define DRAIN_UNIT ((uint32_t)1 << 24)
#define DRAIN_BITS (63 * DRAIN_UNIT)
#define SIZE_BITS (DRAIN_UNIT - 1)

struct slab {
    slab *next;
    region *region;
    uint64_t unit;
    uint32_t units, free_units;
    uint32_t longest;                // no run of free units is longer; it may be less than that
    uint64_t used[UNITS_MOST / 64];  // a bit a unit
    uint32_t bytes[UNITS_MOST];      // at an allocation's first unit its size, else 0
};

static bool is_used(const slab *s, uint32_t unit) { return s->used[unit / 64] >> unit % 64 & 1; }

static uint32_t units_of(const slab *s, uint64_t bytes) { return (uint32_t)((bytes + s->unit - 1) / s->unit); }

static void mark(slab *s, uint32_t first, uint32_t count, bool used) {
    for (uint32_t unit = first; unit < first + count; ++unit) {
        const uint64_t bit = (uint64_t)1 << unit % 64;
        if (used) s->used[unit / 64] |= bit;
        else s->used[unit / 64] &= ~bit;
    }
}

// First fit; the address, or 0.
static mg_address take(slab *s, uint64_t size) {
    const uint32_t wanted = units_of(s, size);
    if (wanted > s->longest || wanted > s->free_units) return 0;
    uint32_t run = 0, longest = 0;
    for (uint32_t unit = 0; unit < s->units; ++unit) {
        run = is_used(s, unit) ? 0 : run + 1;
        if (run > longest) longest = run;
        if (run < wanted) continue;
        const uint32_t first = unit + 1 - wanted;
        mark(s, first, wanted, true);
        s->free_units -= wanted;
        s->bytes[first] = (uint32_t)size;
        return s->region->user + first * s->unit;
    }
    s->longest = longest;
    return 0;
}

static void give_back(slab *s, uint32_t first) {
    const uint32_t count = units_of(s, s->bytes[first] & SIZE_BITS);
    s->bytes[first] = 0;
    mark(s, first, count, false);
    s->free_units += count;
    s->longest = s->free_units;
}

static mg_address take_anywhere(process *p, mg_context context, const pool *of, uint64_t size) {
    for (slab *s = p->slabs; s != NULL; s = s->next) {
        const bool fits = s->region->context == context && s->region->pool == of;
        const mg_address address = fits ? take(s, size) : 0;
        if (address != 0) return address;
    }
    return 0;
}

counter slab_allocate(process *p, const mg_driver *d, const context_entry *c, pool *of, uint64_t size,
                      mg_address *out) {
    pthread_mutex_lock(&p->lock);
    *out = take_anywhere(p, c->context, of, size);
    pthread_mutex_unlock(&p->lock);
    if (*out != 0) return COUNTER_COUNT;
    slab *const made = calloc(1, sizeof *made);
    if (made == NULL) return COUNT_plain_memory;
    made->unit = p->set.alignment;
    made->units = (uint32_t)(SLAB_BYTES / made->unit);
    made->free_units = made->longest = made->units;
    counter why = COUNT_plain_memory;
    region *const r = made->region = region_make(p, d, c, of, SLAB_BYTES, &why);
    if (r == NULL) {
        free(made);
        return why;
    }
    // All at once: the slab goes with its context as soon as it can be found.
    pthread_mutex_lock(&p->lock);
    r->slab = made;
    const bool entered = region_enter(p, r);
    if (entered) {
        made->next = p->slabs;
        p->slabs = made;
        *out = take(made, size);
    }
    pthread_mutex_unlock(&p->lock);
    if (entered) return COUNTER_COUNT;
    r->slab = NULL;
    region_unmake(p, d, r);
    free(made);
    return COUNT_plain_memory;
}

// The first unit of the allocation that holds `address`, or -1.
static int64_t first_unit(const region *r, mg_address address) {
    const slab *const s = r->slab;
    if (address < r->user || address - r->user >= SLAB_BYTES) return -1;
    const uint32_t unit = (uint32_t)((address - r->user) / s->unit);
    if (!is_used(s, unit)) return -1;
    int64_t first = unit;
    while (s->bytes[first] == 0) --first;
    return first;
}

bool slab_find(const region *r, mg_address address, mg_address *start, uint64_t *size) {
    const int64_t first = first_unit(r, address);
    if (first < 0) return false;
    *start = r->user + (uint64_t)first * r->slab->unit;
    *size = r->slab->bytes[first] & SIZE_BITS;
    return address - *start < *size;
}

uint64_t slab_set_aside(const region *r, mg_address address, uint64_t *bytes) {
    const int64_t first = first_unit(r, address);
    if (first < 0 || r->user + (uint64_t)first * r->slab->unit != address || r->slab->bytes[first] > SIZE_BITS) return 0;
    const uint64_t size = r->slab->bytes[first];
    *bytes = units_of(r->slab, size) * r->slab->unit;
    r->slab->bytes[first] |= LEAVING;
    return size;
}

uint64_t slab_take_back(const region *r, mg_address address, uint64_t size) {
    const uint64_t first = (address - r->user) / r->slab->unit;
    r->slab->bytes[first] = size != 0 ? (uint32_t)size : r->slab->bytes[first] & SIZE_BITS;
    return r->slab->bytes[first];
}

void slab_return(process *p, const region *r, mg_address address) {
    give_back(r->slab, (uint32_t)((address - r->user) / r->slab->unit));
    if (r->pool != NULL && r->slab->free_units == r->slab->units)
        atomic_store_explicit(&p->emptied, true, memory_order_release);
}

static void unlink_slab(process *p, slab *s) {
    for (slab **link = &p->slabs; *link != NULL; link = &(*link)->next) {
        if (*link != s) continue;
        *link = s->next;
        return;
    }
}

static bool are_alike(const region *one, const region *other) {
    return one->context == other->context && one->pool == other->pool;
}

static region *withdraw(process *p, slab *s) {
    region *const r = s->region;
    unlink_slab(p, s);
    region_withdraw(p, r);
    r->slab = NULL;
    free(s);
    return r;
}

// Withdraws a slab in which nothing is, if another such one stays or none shall; NULL if there is none.
static region *withdraw_empty(process *p, bool spare_one) {
    for (slab *s = p->slabs; s != NULL; s = s->next) {
        if (s->free_units != s->units) continue;
        const pool *const of = s->region->pool;
        bool spare = !spare_one || (of != NULL && of->handle == NULL);
        for (slab *other = p->slabs; other != NULL && !spare; other = other->next)
            spare = other != s && other->free_units == other->units && are_alike(other->region, s->region);
        if (spare) return withdraw(p, s);
    }
    return NULL;
}

// Withdraws an empty slab of a pool of which more than `most` bytes are reserved; NULL if there is none.
static region *withdraw_excess(process *p, const pool *of, uint64_t most) {
    for (slab *s = of->reserved > most ? p->slabs : NULL; s != NULL; s = s->next)
        if (s->region->pool == of && s->free_units == s->units) return withdraw(p, s);
    return NULL;
}

static bool release(process *p, const mg_driver *d, bool spare_one) {
    // Unmapping is not tried while it might break a capture.
    if (atomic_load_explicit(&p->captures, memory_order_acquire) > 0) return false;
    for (bool any = false;; any = true) {
        pthread_mutex_lock(&p->lock);
        region *const r = withdraw_empty(p, spare_one);
        pthread_mutex_unlock(&p->lock);
        if (r == NULL) return any;
        region_free(p, d, r);
    }
}

void slab_tidy(process *p, const mg_driver *d) { release(p, d, true); }

bool slab_release_empty(process *p, const mg_driver *d) { return release(p, d, false); }

void slab_release_excess(process *p, const mg_driver *d, const pool *of, const uint64_t *most) {
    if (atomic_load_explicit(&p->captures, memory_order_acquire) > 0) return;
    for (;;) {
        pthread_mutex_lock(&p->lock);
        region *const r = withdraw_excess(p, of, most != NULL ? *most : of->threshold);
        pthread_mutex_unlock(&p->lock);
        if (r == NULL) return;
        region_free(p, d, r);
    }
}

mg_result slab_free(process *p, const mg_driver *d, region *r, mg_address address) {
    const bool later = atomic_load_explicit(&p->captures, memory_order_acquire) > 0;
    pthread_mutex_lock(&p->lock);
    // Looked up again: the region may have gone since the caller saw it.
    r = registry_find(p, address) == r ? r : NULL;
    const int64_t first = r != NULL && r->slab != NULL ? first_unit(r, address) : -1;
    const bool ours = first >= 0 && r->user + (uint64_t)first * r->slab->unit == address &&
                      r->slab->bytes[first] <= SIZE_BITS;
    region key = {0};
    if (ours) {
        r->slab->bytes[first] |= later ? DYING : LEAVING;
        p->dying += later;
        key.context = r->context;
        key.number = r->number;
    }
    pthread_mutex_unlock(&p->lock);
    if (!ours) return MG_INVALID_VALUE;
    if (later) {
        counter_add(COUNT_deferred);
        return MG_SUCCESS;
    }
    const mg_result result = region_sync(d, &key);
    pthread_mutex_lock(&p->lock);
    // The context may have been destroyed meanwhile, and the slab with it.
    if (registry_find(p, address) == r && r->number == key.number) {
        if (result == MG_SUCCESS) give_back(r->slab, (uint32_t)first);
        else r->slab->bytes[first] &= SIZE_BITS;
    }
    pthread_mutex_unlock(&p->lock);
    release(p, d, true);
    return result;
}

// A number that no drain under way has; 0 if there are too many, which then do the work. The caller holds the lock.
static uint32_t number_drain(process *p) {
    const uint64_t free = ~p->drains & ~(uint64_t)1;
    const uint32_t number = free != 0 ? (uint32_t)__builtin_ctzll(free) : 0;
    if (number != 0) p->drains |= (uint64_t)1 << number;
    return number;
}

// Gives the dying of one context to a drain, but for those that another one waits for: their work may have begun after
// this one's wait. Returns the context, or NULL if there are none.
static mg_context take_dying(process *p, uint32_t drain) {
    mg_context context = NULL;
    for (slab *s = p->slabs; s != NULL; s = s->next) {
        if (context != NULL && s->region->context != context) continue;
        for (uint32_t unit = 0; unit < s->units; ++unit) {
            if (!(s->bytes[unit] & DYING) || s->bytes[unit] & DRAIN_BITS) continue;
            context = s->region->context;
            s->bytes[unit] |= drain * DRAIN_UNIT;
        }
    }
    return context;
}

// What a drain waited for is free, or, if its wait failed, to be waited for again.
static void settle_dying(process *p, uint32_t drain, bool over) {
    for (slab *s = p->slabs; s != NULL; s = s->next) {
        for (uint32_t unit = 0; unit < s->units; ++unit) {
            if (!(s->bytes[unit] & DYING) || (s->bytes[unit] & DRAIN_BITS) != drain * DRAIN_UNIT) continue;
            if (over) {
                give_back(s, unit);
                --p->dying;
            } else {
                s->bytes[unit] &= ~DRAIN_BITS;
            }
        }
    }
}

static bool is_due(const process *p) {
    return p->dying > 0 && atomic_load_explicit(&p->captures, memory_order_acquire) == 0;
}

void slab_drain(process *p, const mg_driver *d) {
    pthread_mutex_lock(&p->lock);
    const uint32_t drain = is_due(p) ? number_drain(p) : 0;
    while (drain != 0) {
        const region key = {.context = is_due(p) ? take_dying(p, drain) : NULL};
        if (key.context == NULL) break;
        pthread_mutex_unlock(&p->lock);
        const bool over = region_sync(d, &key) == MG_SUCCESS;
        pthread_mutex_lock(&p->lock);
        settle_dying(p, drain, over);
        if (!over) break;
    }
    p->drains &= ~((uint64_t)1 << drain);
    pthread_mutex_unlock(&p->lock);
    release(p, d, true);
}

void slab_forget(process *p, slab *s) {
    pthread_mutex_lock(&p->lock);
    for (uint32_t unit = 0; unit < s->units; ++unit) p->dying -= (s->bytes[unit] & DYING) != 0;
    unlink_slab(p, s);
    pthread_mutex_unlock(&p->lock);
    free(s);
}
