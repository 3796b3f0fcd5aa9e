#define _GNU_SOURCE
#include "placement.h"

#include <time.h>

#include "capture.h"
#include "counters.h"
#include "devices.h"
#include "lookup.h"
#include "region.h"
#include "registry.h"
#include "slab.h"
#include "streams.h"
#include "waiting.h"

#define SLAB_ALIGNMENT_MOST 65536
// Times of a millisecond.
#define ROOM_TRIES 1000

static bool is_primary(const mg_driver *d, mg_context context, mg_device device) {
    unsigned flags;
    int active = 0;
    mg_context primary = NULL;
    if (d->device_primary_ctx_get_state(device, &flags, &active) != MG_SUCCESS || !active) return false;
    if (d->device_primary_ctx_retain(&primary, device) != MG_SUCCESS) return false;
    d->device_primary_ctx_release_v2(device);
    return primary == context;
}

bool placement_context(process *p, const mg_driver *d, context_entry *out) {
    mg_context context = NULL;
    mg_device device;
    if (d->ctx_get_current(&context) != MG_SUCCESS || context == NULL) return false;
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < PROCESS_CONTEXTS; ++i) {
        if (p->contexts[i].context != context) continue;
        *out = p->contexts[i];
        pthread_mutex_unlock(&p->lock);
        return true;
    }
    pthread_mutex_unlock(&p->lock);
    if (d->ctx_get_device(&device) != MG_SUCCESS || device < 0 || device >= PROCESS_DEVICES) return false;
    *out = (context_entry){.context = context, .device = device, .primary = is_primary(d, context, device)};
    pthread_mutex_lock(&p->lock);
    p->contexts[p->contexts_next++ % PROCESS_CONTEXTS] = *out;
    pthread_mutex_unlock(&p->lock);
    return true;
}

static bool has(const mg_driver *d, mg_device device, int attribute) {
    int value = 0;
    return d->device_get_attribute(&value, attribute, device) == MG_SUCCESS && value != 0;
}

static bool device_is_usable(process *p, const mg_driver *d, mg_device device) {
    device_entry *const entry = &p->device[device];
    if (atomic_load_explicit(&entry->known, memory_order_acquire)) return entry->usable;
    const mg_allocation_properties memory = {
        .type = MG_MEMORY_PINNED,
        .location = {.type = MG_LOCATION_DEVICE, .id = device},
    };
    size_t granularity = 0;
    if (d->mem_get_allocation_granularity(&granularity, &memory, MG_GRANULARITY_MINIMUM) != MG_SUCCESS) return false;
    const bool usable =
        has(d, device, MG_DEVICE_UNIFIED_ADDRESSING) && has(d, device, MG_DEVICE_VIRTUAL_MEMORY_MANAGEMENT) &&
        has(d, device, MG_DEVICE_CONCURRENT_MANAGED_ACCESS) && granularity >= p->set.alignment &&
        (granularity & (granularity - 1)) == 0;
    const bool rdma = has(d, device, MG_DEVICE_RDMA_WITH_VIRTUAL_MEMORY);
    pthread_mutex_lock(&p->lock);
    // Once: from then on it is read without the lock.
    if (!atomic_load_explicit(&entry->known, memory_order_relaxed)) {
        entry->usable = usable;
        entry->rdma = rdma;
        entry->granularity = granularity;
        atomic_store_explicit(&entry->known, true, memory_order_release);
    }
    pthread_mutex_unlock(&p->lock);
    return usable;
}

static bool is_set(const _Atomic bool *flag) { return atomic_load_explicit(flag, memory_order_acquire); }

// To ask the loader for a caller's library takes longer than all the rest, and callers are few.
static bool is_plain_caller(const process *p, const void *caller) {
    static __thread const void *last __attribute__((tls_model("initial-exec")));
    static __thread bool verdict __attribute__((tls_model("initial-exec")));
    if (caller != last) {
        verdict = lookup_is_in_library(p->set.plain_callers, caller);
        last = caller;
    }
    return verdict;
}

counter placement_objection(process *p, const mg_driver *d, const context_entry *c, uint64_t size, const void *caller) {
    if (!devices_allow(p, d, c->device)) return COUNT_plain_devices;
    if (size <= SLAB_MOST && (!p->set.slabs || p->set.alignment > SLAB_ALIGNMENT_MOST)) return COUNT_plain_small;
    if (is_plain_caller(p, caller)) return COUNT_plain_caller;
    if (!device_is_usable(p, d, c->device)) return COUNT_plain_device;
    // A green context shares its address space with its primary one, and waiting for it waits for its share only.
    if (is_set(&p->green) && !c->primary) return COUNT_plain_context;
    return COUNTER_COUNT;
}

static counter serve(process *p, const mg_driver *d, const context_entry *c, pool *of, uint64_t size, mg_address *out) {
    counter why;
    if (size <= SLAB_MOST) return slab_allocate(p, d, c, of, size, out);
    region *const r = region_make(p, d, c, of, size, &why);
    if (r == NULL) return why;
    pthread_mutex_lock(&p->lock);
    const bool entered = region_enter(p, r);
    if (entered) *out = r->user;
    pthread_mutex_unlock(&p->lock);
    if (entered) return COUNTER_COUNT;
    region_unmake(p, d, r);
    return COUNT_plain_memory;
}

mg_address placement_serve(process *p, const mg_driver *d, const context_entry *c, pool *of, uint64_t size) {
    mg_address address = 0;
    const bool captured = atomic_load_explicit(&p->captures, memory_order_acquire) > 0;
    const int mode = captured ? streams_relax(d) : 0;
    counter why = serve(p, d, c, of, size, &address);
    // What was freed in stream order may be all that is missing.
    if (why != COUNTER_COUNT && atomic_load_explicit(&p->waiting_count, memory_order_acquire) > 0) {
        streams_ask(p, d, NULL);
        if (waiting_release_all(p, d)) why = serve(p, d, c, of, size, &address);
    }
    if (captured) streams_unrelax(d, mode);
    if (why == COUNTER_COUNT) devices_catch_up(p, d);
    counter_add(why != COUNTER_COUNT ? why : size <= SLAB_MOST ? COUNT_placed_small : COUNT_placed);
    return address;
}

void placement_drain(process *p, const mg_driver *d) {
    region_drain(p, d);
    slab_drain(p, d);
    if (atomic_load_explicit(&p->waiting_count, memory_order_acquire) == 0) return;
    pthread_mutex_lock(&p->lock);
    const bool without_pool = p->waiting_without_pool > 0;
    pthread_mutex_unlock(&p->lock);
    if (!without_pool) return;
    streams_ask(p, d, NULL);
    waiting_release(p, d, NULL, 0);
}

mg_address placement_allocate(const mg_driver *d, uint64_t size, const void *caller) {
    context_entry c;
    process *const p = process_get();
    if (p == NULL || !placement_context(p, d, &c)) return 0;
    placement_drain(p, d);
    const counter why =
        capture_lets_allocate(p, d) ? placement_objection(p, d, &c, size, caller) : COUNT_plain_capture;
    if (why == COUNTER_COUNT) return placement_serve(p, d, &c, NULL, size);
    counter_add(why);
    return 0;
}

// Frees in stream order that are not over: what they would give back is waited for, but not for ever.
static bool make_room_in_time(process *p, const mg_driver *d) {
    static const struct timespec pause = {.tv_nsec = 1000000};
    for (int tries = 0; tries < ROOM_TRIES; ++tries) {
        streams_ask(p, d, NULL);
        if (waiting_release_all(p, d)) return true;
        if (atomic_load_explicit(&p->waiting_count, memory_order_acquire) == 0 ||
            atomic_load_explicit(&p->captures, memory_order_acquire) > 0)
            return false;
        nanosleep(&pause, NULL);
    }
    return false;
}

bool placement_make_room(const mg_driver *d) {
    process *const p = process_if_any();
    if (p == NULL) return false;
    placement_drain(p, d);
    const bool waited = make_room_in_time(p, d);
    return slab_release_empty(p, d) || waited;
}

bool placement_find(mg_address address, placement *out) {
    process *const p = process_if_any();
    if (p == NULL) return false;
    pthread_mutex_lock(&p->lock);
    const region *const r = registry_find(p, address);
    bool found = r != NULL && !r->aside;
    if (found) {
        *out = (placement){
            .start = r->user,
            .size = r->size,
            // The driver names no context for what it allocated in stream order.
            .context = r->pool == NULL ? r->context : NULL,
            .pool = r->pool_handle,
        };
        found = r->slab != NULL ? slab_find(r, address, &out->start, &out->size)
                                : address >= r->user && address - r->user < r->size;
    }
    pthread_mutex_unlock(&p->lock);
    return found;
}

bool placement_is_ours(mg_address address) {
    process *const p = process_if_any();
    if (p == NULL) return false;
    pthread_mutex_lock(&p->lock);
    const region *const r = registry_find(p, address);
    const bool ours = r != NULL && address - r->start >= r->at.front && address - r->start < r->at.front + r->at.memory;
    pthread_mutex_unlock(&p->lock);
    return ours;
}

// Frees a region after its work. The program has it still if the wait fails, so it stays where it can be found.
static mg_result free_region(process *p, const mg_driver *d, region *r, const region *key) {
    const mg_result result = region_sync(d, key);
    pthread_mutex_lock(&p->lock);
    // It may have gone with its context meanwhile.
    const bool there = registry_find(p, key->start) == r && r->number == key->number;
    if (there && result == MG_SUCCESS) region_withdraw(p, r);
    else if (there) r->aside = false;
    pthread_mutex_unlock(&p->lock);
    if (there && result == MG_SUCCESS) region_free(p, d, r);
    return result;
}

bool placement_free(const mg_driver *d, mg_address address, mg_result *result) {
    process *const p = process_if_any();
    if (p == NULL) return false;
    placement_drain(p, d);
    const bool later = atomic_load_explicit(&p->captures, memory_order_acquire) > 0;
    region key = {0};
    pthread_mutex_lock(&p->lock);
    region *const r = registry_find(p, address);
    const bool small = r != NULL && r->slab != NULL;
    const bool ours = r != NULL && (small || (r->user == address && !r->aside));
    if (ours && !small) {
        key.start = r->start;
        key.context = r->context;
        key.number = r->number;
        if (later) region_withdraw(p, r);
        else r->aside = true;
    }
    pthread_mutex_unlock(&p->lock);
    if (!ours) return false;
    if (small) {
        *result = slab_free(p, d, r, address);
    } else if (later) {
        // Waiting would break the capture.
        region_defer(p, r, true);
        *result = MG_SUCCESS;
    } else {
        *result = free_region(p, d, r, &key);
    }
    if (*result == MG_SUCCESS) counter_add(COUNT_freed);
    return true;
}
