#include "placement.h"

#include "counters.h"
#include "lookup.h"
#include "region.h"
#include "registry.h"
#include "slab.h"

#define SLAB_ALIGNMENT_MOST 65536

static bool is_primary(const mg_driver *d, mg_context context, mg_device device) {
    unsigned flags;
    int active = 0;
    mg_context primary = NULL;
    if (d->cuDevicePrimaryCtxGetState(device, &flags, &active) != MG_SUCCESS || !active) return false;
    if (d->cuDevicePrimaryCtxRetain(&primary, device) != MG_SUCCESS) return false;
    d->cuDevicePrimaryCtxRelease_v2(device);
    return primary == context;
}

// The current context, looked up or learnt. False if there is none.
static bool current_context(process *p, const mg_driver *d, context_entry *out) {
    mg_context context = NULL;
    mg_device device;
    if (d->cuCtxGetCurrent(&context) != MG_SUCCESS || context == NULL) return false;
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < PROCESS_CONTEXTS; ++i) {
        if (p->contexts[i].context != context) continue;
        *out = p->contexts[i];
        pthread_mutex_unlock(&p->lock);
        return true;
    }
    pthread_mutex_unlock(&p->lock);
    if (d->cuCtxGetDevice(&device) != MG_SUCCESS || device < 0 || device >= PROCESS_DEVICES) return false;
    *out = (context_entry){.context = context, .device = device, .primary = is_primary(d, context, device)};
    pthread_mutex_lock(&p->lock);
    p->contexts[p->contexts_next++ % PROCESS_CONTEXTS] = *out;
    pthread_mutex_unlock(&p->lock);
    return true;
}

static bool has(const mg_driver *d, mg_device device, int attribute) {
    int value = 0;
    return d->cuDeviceGetAttribute(&value, attribute, device) == MG_SUCCESS && value != 0;
}

static bool device_is_usable(process *p, const mg_driver *d, mg_device device) {
    pthread_mutex_lock(&p->lock);
    device_entry entry = p->device[device];
    pthread_mutex_unlock(&p->lock);
    if (entry.known) return entry.usable;
    const mg_allocation_properties memory = {
        .type = MG_MEMORY_PINNED,
        .location = {.type = MG_LOCATION_DEVICE, .id = device},
    };
    size_t granularity = 0;
    if (d->cuMemGetAllocationGranularity(&granularity, &memory, MG_GRANULARITY_MINIMUM) != MG_SUCCESS) return false;
    entry = (device_entry){
        .known = true,
        .usable = has(d, device, MG_DEVICE_UNIFIED_ADDRESSING) && has(d, device, MG_DEVICE_VIRTUAL_MEMORY_MANAGEMENT) &&
                  has(d, device, MG_DEVICE_CONCURRENT_MANAGED_ACCESS) && granularity >= p->set.alignment &&
                  (granularity & (granularity - 1)) == 0,
        .rdma = has(d, device, MG_DEVICE_RDMA_WITH_VIRTUAL_MEMORY),
        .granularity = granularity,
    };
    pthread_mutex_lock(&p->lock);
    p->device[device] = entry;
    pthread_mutex_unlock(&p->lock);
    return entry.usable;
}

// Peers of a device reach plain memory by cuCtxEnablePeerAccess, but not memory that is mapped as regions are.
static bool several_devices(process *p, const mg_driver *d) {
    int count = atomic_load_explicit(&p->devices, memory_order_relaxed);
    if (count == 0) {
        if (d->cuDeviceGetCount(&count) != MG_SUCCESS) return true;
        atomic_store_explicit(&p->devices, count, memory_order_relaxed);
    }
    return count != 1;
}

static bool is_set(const _Atomic bool *flag) { return atomic_load_explicit(flag, memory_order_acquire); }

// Why this allocation must be plain, or COUNTER_COUNT.
static counter objection(process *p, const mg_driver *d, uint64_t size, const void *caller) {
    if (is_set(&p->exports)) return COUNT_plain_ipc;
    if (atomic_load_explicit(&p->captures, memory_order_acquire) > 0) return COUNT_plain_capture;
    if (several_devices(p, d)) return COUNT_plain_devices;
    if (size <= SLAB_MOST && (!p->set.slabs || p->set.alignment > SLAB_ALIGNMENT_MOST)) return COUNT_plain_small;
    if (lookup_is_in_library(p->set.plain_callers, caller)) return COUNT_plain_caller;
    return COUNTER_COUNT;
}

mg_address placement_allocate(const mg_driver *d, uint64_t size, const void *caller) {
    context_entry c;
    process *const p = process_get();
    if (p == NULL || !current_context(p, d, &c)) return 0;
    region_drain(p, d);
    slab_drain(p, d);
    counter why = objection(p, d, size, caller);
    if (why == COUNTER_COUNT && !device_is_usable(p, d, c.device)) why = COUNT_plain_device;
    // A green context shares its address space with its primary one, and waiting for it waits for its share only.
    if (why == COUNTER_COUNT && is_set(&p->green) && !c.primary) why = COUNT_plain_context;
    if (why != COUNTER_COUNT) {
        counter_add(why);
        return 0;
    }
    if (size <= SLAB_MOST) {
        const mg_address address = slab_allocate(p, d, &c, size);
        if (address != 0) counter_add(COUNT_placed_small);
        return address;
    }
    mg_address address;
    if (!region_make(p, d, &c, size, NULL, &address)) return 0;
    counter_add(COUNT_placed);
    return address;
}

bool placement_make_room(const mg_driver *d) {
    process *const p = process_if_any();
    if (p == NULL) return false;
    region_drain(p, d);
    slab_drain(p, d);
    return slab_release_empty(p, d);
}

bool placement_find(mg_address address, placement *out) {
    process *const p = process_if_any();
    if (p == NULL) return false;
    pthread_mutex_lock(&p->lock);
    const region *const r = registry_find(p, address);
    bool found = r != NULL;
    if (found) {
        *out = (placement){.start = r->user, .size = r->size, .context = r->context};
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

bool placement_free(const mg_driver *d, mg_address address, mg_result *result) {
    process *const p = process_if_any();
    if (p == NULL) return false;
    region_drain(p, d);
    slab_drain(p, d);
    pthread_mutex_lock(&p->lock);
    region *const r = registry_find(p, address);
    const bool small = r != NULL && r->slab != NULL;
    const bool ours = r != NULL && (small || r->user == address);
    if (ours && !small) region_withdraw(p, r);
    pthread_mutex_unlock(&p->lock);
    if (!ours) return false;
    if (small) {
        *result = slab_free(p, d, r, address);
    } else if (atomic_load_explicit(&p->captures, memory_order_acquire) > 0) {
        // Waiting would break the capture.
        region_defer(p, r, true);
        *result = MG_SUCCESS;
    } else {
        *result = region_sync(d, r);
        if (*result == MG_SUCCESS) region_free(p, d, r);
        else region_enter(p, r);
    }
    if (*result == MG_SUCCESS) counter_add(COUNT_freed);
    return true;
}
