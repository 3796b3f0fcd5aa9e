#define _GNU_SOURCE
#include "region.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "pools.h"
#include "registry.h"
#include "second/takeover_state.h"

#define MIB ((uint64_t)1 << 20)
// Left to the program and the driver whatever is armed.
#define MARGIN (512 * MIB)
// Addresses kept for reuse: they save a reservation and the arming of two zones, and hold no memory.
#define KEPT_MOST 64

static uint64_t armed(const region *r) { return r->front_armed + r->back_armed; }

static void disarm_front(process *p, region *r) {
    if (r->front_armed == 0) return;
    uvm_disarm(r->start, r->front_armed, r->front_before);
    p->armed -= r->front_armed;
    r->front_armed = 0;
}

static void disarm_back(process *p, region *r) {
    if (r->back_armed == 0) return;
    uvm_disarm(r->start + r->at.front + r->at.memory, r->back_armed, r->back_before);
    p->armed -= r->back_armed;
    r->back_armed = 0;
}

// Both zones, or none. Under the lock: these are system calls, not driver calls.
static bool arm(process *p, region *r) {
    const uint64_t back = r->start + r->at.front + r->at.memory;
    if (!uvm_arm(&p->uvm, p->set.uvm, back, r->at.back, &r->back_before)) return false;
    r->back_armed = r->at.back;
    p->armed += r->back_armed;
    if (r->at.front == 0) return true;
    if (uvm_arm(&p->uvm, p->set.uvm, r->start, r->at.front, &r->front_before)) {
        r->front_armed = r->at.front;
        p->armed += r->front_armed;
        return true;
    }
    disarm_back(p, r);
    return false;
}

static uint32_t flags_of(const region *r) {
    return ZONE_LIVE | (r->front_armed ? ZONE_FRONT_ARMED : 0) | (r->back_armed ? ZONE_BACK_ARMED : 0) |
           (r->slab ? ZONE_SLAB : 0);
}

static region *take_kept(process *p, uint64_t memory, mg_device device) {
    for (region **link = &p->kept; *link != NULL; link = &(*link)->next) {
        region *const r = *link;
        if (r->at.memory != memory || r->device != device) continue;
        *link = r->next;
        --p->kept_count;
        p->kept_armed -= armed(r);
        return r;
    }
    return NULL;
}

static region *take_oldest_kept(process *p) {
    region **link = &p->kept;
    if (*link == NULL) return NULL;
    while ((*link)->next != NULL) link = &(*link)->next;
    region *const r = *link;
    *link = NULL;
    --p->kept_count;
    p->kept_armed -= armed(r);
    return r;
}

// Lets go of kept addresses, the oldest first, until no more than `most` bytes are armed in all.
static void trim_kept(process *p, const mg_driver *d, uint64_t most) {
    for (;;) {
        pthread_mutex_lock(&p->lock);
        region *const r = p->armed > most ? take_oldest_kept(p) : NULL;
        pthread_mutex_unlock(&p->lock);
        if (r == NULL) return;
        region_unmake(p, d, r);
    }
}

// Where more is armed than the card allows by now, zones go: of kept addresses first, then of the oldest regions. A
// region without zones is as safe as plain memory with nothing beside it.
static void shed(process *p, const mg_driver *d, uint64_t allowed) {
    trim_kept(p, d, allowed);
    pthread_mutex_lock(&p->lock);
    while (p->armed > allowed) {
        region *oldest = NULL;
        for (size_t i = 0; i < p->live_count; ++i) {
            region *const r = p->live[i];
            if (armed(r) > 0 && (oldest == NULL || r->number < oldest->number)) oldest = r;
        }
        if (oldest == NULL) break;  // the rest belongs to regions that are being taken apart
        disarm_front(p, oldest);
        disarm_back(p, oldest);
        zone_table_mark(&p->table, oldest->slot, flags_of(oldest));
        counter_add(COUNT_shed);
    }
    pthread_mutex_unlock(&p->lock);
}

static mg_allocation_properties properties(const process *p, mg_device device) {
    return (mg_allocation_properties){
        .type = MG_MEMORY_PINNED,
        .requested_handle_types = MG_HANDLE_POSIX,
        .location = {.type = MG_LOCATION_DEVICE, .id = device},
        .flags = {.rdma_capable = p->device[device].rdma},
    };
}

// Reserved addresses with both zones armed; NULL, and why not.
static region *new_addresses(process *p, const mg_driver *d, mg_device device, uint64_t size, uint64_t allowed,
                             counter *why) {
    const uint64_t unit = p->device[device].granularity;
    pthread_mutex_lock(&p->lock);
    const uint64_t left = allowed > p->armed ? allowed - p->armed : 0;
    pthread_mutex_unlock(&p->lock);
    // Another copy of the driver does not know of what is armed with the first one. What is beside its memory is memory, or nothing.
    const bool bare = takeover_happened();
    const uint64_t front = p->set.front && !bare ? layout_zone(p->set.front, left, unit) : 0;
    const uint64_t back = bare ? 0 : layout_zone(p->set.back, left, unit);
    region *const r = calloc(1, sizeof *r);
    *why = COUNT_plain_memory;
    if (r == NULL) return NULL;
    r->slot = r->shared = -1;
    r->device = device;
    *why = COUNT_plain_unarmed;
    if (front + back > left || !layout_plan(size, front, back, unit, p->set.alignment, p->set.placement, &r->at)) {
        free(r);
        return NULL;
    }
    if (d->mem_address_reserve(&r->start, r->at.total, unit, 0, 0) != MG_SUCCESS) {
        *why = COUNT_plain_driver;
        free(r);
        return NULL;
    }
    r->reserved = true;
    pthread_mutex_lock(&p->lock);
    // Looked at again: another thread may have armed meanwhile.
    const bool done = bare || (p->armed + front + back <= allowed && arm(p, r));
    pthread_mutex_unlock(&p->lock);
    if (done) return r;
    region_unmake(p, d, r);
    return NULL;
}

// Real memory into the middle; what was done before a failure is left for take_apart.
static bool fill(process *p, const mg_driver *d, region *r) {
    mg_allocation_properties wanted = properties(p, r->device);
    const mg_access access = {.location = wanted.location, .flags = MG_ACCESS_READ_WRITE};
    const mg_address memory = r->start + r->at.front;
    mg_result made = d->mem_create(&r->handle, r->at.memory, &wanted, 0);
    if (made != MG_SUCCESS && made != MG_OUT_OF_MEMORY && wanted.requested_handle_types != 0) {
        // Where it cannot be exported, it is memory all the same.
        wanted.requested_handle_types = 0;
        made = d->mem_create(&r->handle, r->at.memory, &wanted, 0);
    }
    r->held = made == MG_SUCCESS;
    r->mapped = r->held && d->mem_map(memory, r->at.memory, 0, r->handle, 0) == MG_SUCCESS;
    if (!r->mapped) return false;
    // From here on the mapping holds the memory. A handle that is not taken back now is given back with the region.
    r->held = d->mem_release(r->handle) != MG_SUCCESS;
    return d->mem_set_access(memory, r->at.memory, &access, 1) == MG_SUCCESS;
}

static zone_entry entry_of(const region *r) {
    return (zone_entry){
        .start = r->start, .front = r->at.front, .memory = r->at.memory, .back = r->at.back,
        .user = r->user, .size = r->size, .flags = flags_of(r), .number = r->number, .device = r->device,
    };
}

bool region_enter(process *p, region *r) {
    if (!registry_add(p, r)) return false;
    r->number = ++p->regions;
    const zone_entry entry = entry_of(r);
    r->slot = zone_table_add(&p->table, &entry);
    pools_reserve(r->pool, r->at.memory);
    return true;
}

void region_use_again(process *p, region *r, uint64_t size) {
    r->at.user = layout_place(&r->at, size, p->set.alignment, p->set.placement);
    r->user = r->start + r->at.user;
    r->size = size;
    r->number = ++p->regions;
    r->aside = false;
    const zone_entry entry = entry_of(r);
    zone_table_change(&p->table, r->slot, &entry);
}

region *region_make(process *p, const mg_driver *d, const context_entry *c, pool *of, uint64_t size, counter *why) {
    const uint64_t memory = layout_round_up(size, p->device[c->device].granularity);
    size_t free_now = 0, total = 0;
    *why = COUNT_plain_driver;
    if (memory == 0 || d->mem_get_info_v2(&free_now, &total) != MG_SUCCESS) return NULL;
    // What is about to be taken counts as taken.
    const uint64_t free_after = free_now > memory ? free_now - memory : 0;
    const uint64_t allowed = layout_allowed(free_after, MARGIN, p->set.limit);
    shed(p, d, allowed);
    pthread_mutex_lock(&p->lock);
    region *r = take_kept(p, memory, c->device);
    pthread_mutex_unlock(&p->lock);
    if (r != NULL) counter_add(COUNT_reused);
    else {
        // Kept addresses shall not make the zones of new ones smaller (layout_zone).
        const uint64_t wanted = 16 * (p->set.front + p->set.back);
        trim_kept(p, d, allowed > wanted ? allowed - wanted : 0);
        if ((r = new_addresses(p, d, c->device, size, allowed, why)) == NULL) return NULL;
    }
    r->context = c->context;
    r->primary = c->primary;
    layout_plan(size, r->at.front, r->at.back, p->device[c->device].granularity, p->set.alignment, p->set.placement,
                &r->at);
    r->user = r->start + r->at.user;
    r->size = size;
    r->slab = NULL;
    r->pool = of;
    r->pool_handle = of != NULL ? of->handle : NULL;
    r->aside = false;
    if (fill(p, d, r)) return r;
    *why = COUNT_plain_driver;
    region_unmake(p, d, r);
    return NULL;
}

mg_result region_export(const mg_driver *d, mg_address memory, int *fd) {
    mg_handle handle;
    *fd = -1;
    if (d->mem_export_to_shareable_handle == NULL) return MG_NOT_SUPPORTED;
    mg_result result = d->mem_retain_allocation_handle(&handle, (void *)(uintptr_t)memory);
    if (result != MG_SUCCESS) return result;
    result = d->mem_export_to_shareable_handle(fd, handle, MG_HANDLE_POSIX, 0);
    d->mem_release(handle);
    if (result != MG_SUCCESS) *fd = -1;
    else fcntl(*fd, F_SETFD, FD_CLOEXEC);
    return result;
}

mg_result region_sync(const mg_driver *d, const region *r) {
    mg_context now = NULL;
    mg_result result = d->ctx_get_current(&now);
    if (result != MG_SUCCESS) return result;
    if (now == r->context) return d->ctx_synchronize();
    result = d->ctx_push_current_v2(r->context);
    if (result != MG_SUCCESS) return result;
    result = d->ctx_synchronize();
    mg_context popped;
    if (d->ctx_pop_current_v2(&popped) != MG_SUCCESS) d->ctx_pop_current_v2(&popped);
    return result;
}

static bool unmap(const mg_driver *d, region *r) {
    // It was withdrawn before, so the descriptor is not found any more.
    if (r->shared >= 0) close(r->shared);
    r->shared = -1;
    r->mapped = r->mapped && d->mem_unmap(r->start + r->at.front, r->at.memory) != MG_SUCCESS;
    r->held = r->held && d->mem_release(r->handle) != MG_SUCCESS;
    return !r->mapped && !r->held;
}

// One step after the other, each remembered: it can be called again after a failure.
static bool take_apart(process *p, const mg_driver *d, region *r) {
    if (!unmap(d, r)) return false;
    pthread_mutex_lock(&p->lock);
    disarm_front(p, r);
    disarm_back(p, r);
    pthread_mutex_unlock(&p->lock);
    r->reserved = r->reserved && d->mem_address_free(r->start, r->at.total) != MG_SUCCESS;
    return !r->reserved;
}

static void put_off(process *p, region *r) {
    pthread_mutex_lock(&p->lock);
    r->next = p->pending;
    p->pending = r;
    pthread_mutex_unlock(&p->lock);
}

void region_withdraw(process *p, region *r) {
    registry_remove(p, r);
    pools_release(r->pool, r->at.memory);
    zone_table_mark(&p->table, r->slot, 0);
    r->slot = -1;
}

void region_free(process *p, const mg_driver *d, region *r) {
    if (!unmap(d, r)) {
        region_defer(p, r, r->mapped);
        return;
    }
    pthread_mutex_lock(&p->lock);
    const bool kept = armed(r) > 0 && p->kept_count < KEPT_MOST;
    if (kept) {
        r->slab = NULL;
        r->next = p->kept;
        p->kept = r;
        ++p->kept_count;
        p->kept_armed += armed(r);
    }
    pthread_mutex_unlock(&p->lock);
    if (!kept) region_unmake(p, d, r);
}

void region_unmake(process *p, const mg_driver *d, region *r) {
    if (take_apart(p, d, r)) free(r);
    else region_defer(p, r, r->mapped);
}

void region_defer(process *p, region *r, bool sync) {
    counter_add(COUNT_deferred);
    r->sync = sync;
    put_off(p, r);
}

// The regions that one thread is about to free, where region_drop finds them.
struct region_drain {
    struct region_drain *next;
    region *list;
};

static void unlink_drain(process *p, const struct region_drain *drain) {
    struct region_drain **link = &p->draining;
    while (*link != drain) link = &(*link)->next;
    *link = drain->next;
}

void region_drain(process *p, const mg_driver *d) {
    if (atomic_load_explicit(&p->captures, memory_order_acquire) > 0) return;
    pthread_mutex_lock(&p->lock);
    struct region_drain own = {.next = p->draining, .list = p->pending};
    p->pending = NULL;
    p->draining = &own;
    while (own.list != NULL) {
        region *const r = own.list;
        const bool sync = r->sync;
        pthread_mutex_unlock(&p->lock);
        const bool gone = (!sync || region_sync(d, r) == MG_SUCCESS) && take_apart(p, d, r);
        pthread_mutex_lock(&p->lock);
        own.list = r->next;
        if (!gone) {
            r->next = p->pending;
            p->pending = r;
        } else {
            free(r);
        }
    }
    unlink_drain(p, &own);
    pthread_mutex_unlock(&p->lock);
}

bool region_is_of(const region *r, mg_context context, mg_device device) {
    return context != NULL ? r->context == context : r->primary && r->device == device;
}

// The work of these regions ended with their context, if it was that one.
static void spare_wait(region *list, mg_context context, mg_device device) {
    for (region *r = list; r != NULL; r = r->next)
        if (region_is_of(r, context, device)) r->sync = false;
}

void region_drop(process *p, const mg_driver *d, mg_context context, mg_device device,
                 void (*forget)(process *p, slab *s)) {
    region *list = NULL;
    trim_kept(p, d, 0);
    pthread_mutex_lock(&p->lock);
    // CUDA may open the UVM device anew for its next context.
    p->uvm.fd = -1;
    for (size_t i = p->live_count; i-- > 0;) {
        region *const r = p->live[i];
        if (!region_is_of(r, context, device)) continue;
        region_withdraw(p, r);
        r->next = list;
        list = r;
    }
    spare_wait(p->pending, context, device);
    for (const struct region_drain *each = p->draining; each != NULL; each = each->next)
        spare_wait(each->list, context, device);
    pthread_mutex_unlock(&p->lock);
    while (list != NULL) {
        region *const r = list;
        list = r->next;
        if (r->slab != NULL) forget(p, r->slab);
        r->slab = NULL;
        if (take_apart(p, d, r)) free(r);
        else region_defer(p, r, false);
    }
}
