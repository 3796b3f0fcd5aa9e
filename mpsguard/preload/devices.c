#include "devices.h"

#include <stdlib.h>

#include "counters.h"
#include "region.h"

enum { REACH_UNKNOWN, REACHED, NOT_REACHED };

int devices_visible(process *p, const mg_driver *d) {
    int count = atomic_load_explicit(&p->devices, memory_order_relaxed);
    if (count == 0 && d->device_get_count(&count) != MG_SUCCESS) return 0;
    atomic_store_explicit(&p->devices, count, memory_order_relaxed);
    return count;
}

static uint64_t bit(mg_device device) { return (uint64_t)1 << device; }

static bool is_one(uint64_t used) { return (used & (used - 1)) == 0; }

// What is placed now, on other devices.
static void open_all(process *p, const mg_driver *d, mg_device to) {
    const mg_access access = {.location = {.type = MG_LOCATION_DEVICE, .id = to}, .flags = MG_ACCESS_READ_WRITE};
    typedef struct { mg_address at; uint64_t size; } part;
    size_t count = 0;
    pthread_mutex_lock(&p->lock);
    part *const parts = p->live_count > 0 ? malloc(p->live_count * sizeof *parts) : NULL;
    if (parts == NULL && p->live_count > 0) counter_add(COUNT_unopened);
    for (size_t i = 0; parts != NULL && i < p->live_count; ++i) {
        const region *const r = p->live[i];
        if (r->device != to) parts[count++] = (part){r->start + r->at.front, r->at.memory};
    }
    pthread_mutex_unlock(&p->lock);
    // One that is freed meanwhile is refused, which is as well.
    for (size_t i = 0; i < count; ++i)
        if (d->mem_set_access(parts[i].at, parts[i].size, &access, 1) != MG_SUCCESS) counter_add(COUNT_unopened);
    free(parts);
}

void devices_note(process *p, const mg_driver *d, mg_device device) {
    if (device < 0 || device >= PROCESS_DEVICES) return;
    const uint64_t before = atomic_fetch_or_explicit(&p->devices_used, bit(device), memory_order_acq_rel);
    if (before != 0 && (before & bit(device)) == 0) open_all(p, d, device);
}

void devices_catch_up(process *p, const mg_driver *d) {
    const uint64_t used = atomic_load_explicit(&p->devices_used, memory_order_acquire);
    if (is_one(used)) return;
    for (mg_device device = 0; device < PROCESS_DEVICES; ++device)
        if ((used & bit(device)) != 0) open_all(p, d, device);
}

static bool can_reach(const mg_driver *d, mg_device from, mg_device to) {
    int can = 0;
    return d->device_can_access_peer != NULL && d->device_can_access_peer(&can, from, to) == MG_SUCCESS && can != 0;
}

static bool is_reached(process *p, const mg_driver *d, mg_device device, int count) {
    _Atomic int *const known = &p->device[device].reached;
    if (atomic_load_explicit(known, memory_order_relaxed) == REACH_UNKNOWN) {
        bool all = true;
        for (mg_device other = 0; all && other < count; ++other) all = other == device || can_reach(d, other, device);
        atomic_store_explicit(known, all ? REACHED : NOT_REACHED, memory_order_relaxed);
    }
    return atomic_load_explicit(known, memory_order_relaxed) == REACHED;
}

bool devices_allow(process *p, const mg_driver *d, mg_device device) {
    const int count = devices_visible(p, d);
    if (count == 1) return true;
    if (count < 1 || count > PROCESS_DEVICES) return false;
    devices_note(p, d, device);
    if (!is_one(atomic_load_explicit(&p->devices_used, memory_order_acquire)) || !is_reached(p, d, device, count)) return false;
    // A context that was made past the preload.
    for (mg_device other = 0; other < count; ++other) {
        unsigned flags;
        int active = 0;
        if (other == device) continue;
        if (d->device_primary_ctx_get_state(other, &flags, &active) == MG_SUCCESS && !active) continue;
        devices_note(p, d, other);
        return false;
    }
    return true;
}
