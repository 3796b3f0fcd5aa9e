#include "pools.h"

#include <string.h>

// Below that, what is held does not matter.
#define HELD_AT_LEAST ((uint64_t)64 << 20)

pool *pools_entry(process *p, mg_pool handle) {
    for (size_t i = 0; handle != NULL && i < PROCESS_POOLS; ++i)
        if (p->pools[i].handle == handle) return &p->pools[i];
    return NULL;
}

// A new entry, or NULL if there are too many: then the pool is one that we do not know.
static pool *add(process *p, mg_pool handle, bool plain, uint64_t threshold) {
    for (size_t i = 0; i < PROCESS_POOLS; ++i) {
        pool *const entry = &p->pools[i];
        if (entry->handle != NULL || entry->reserved != 0) continue;
        *entry = (pool){.handle = handle, .plain = plain, .threshold = threshold};
        return entry;
    }
    return NULL;
}

static bool threshold_of(const mg_driver *d, mg_pool handle, uint64_t *out) {
    return d->mem_pool_get_attribute != NULL &&
           d->mem_pool_get_attribute(handle, MG_POOL_RELEASE_THRESHOLD, out) == MG_SUCCESS;
}

static bool is_default(const mg_driver *d, mg_pool handle, mg_device device) {
    mg_pool found = NULL;
    return d->device_get_default_mem_pool != NULL && d->device_get_default_mem_pool(&found, device) == MG_SUCCESS &&
           found == handle;
}

static pool *enter(process *p, const mg_driver *d, mg_pool handle, bool plain) {
    uint64_t threshold = 0;
    const bool known = threshold_of(d, handle, &threshold);
    pthread_mutex_lock(&p->lock);
    pool *entry = pools_entry(p, handle);
    if (entry == NULL) entry = add(p, handle, plain || !known, threshold);
    pthread_mutex_unlock(&p->lock);
    return entry;
}

pool *pools_find(process *p, const mg_driver *d, mg_pool handle, mg_device device) {
    pthread_mutex_lock(&p->lock);
    pool *entry = pools_entry(p, handle);
    bool plain = entry != NULL && entry->plain;
    pthread_mutex_unlock(&p->lock);
    if (entry == NULL && handle != NULL && is_default(d, handle, device)) {
        entry = enter(p, d, handle, false);
        plain = entry != NULL && entry->plain;
    }
    return plain ? NULL : entry;
}

// Memory of one device, for this process only, and as much as there is.
static bool is_ordinary(const mg_pool_properties *properties) {
    const mg_pool_properties ordinary = {
        .allocation_type = MG_MEMORY_PINNED,
        .location = {.type = MG_LOCATION_DEVICE, .id = properties->location.id},
    };
    return memcmp(&ordinary, properties, sizeof ordinary) == 0;
}

void pools_made(process *p, const mg_driver *d, mg_pool handle, const mg_pool_properties *properties) {
    pools_destroyed(p, handle);
    enter(p, d, handle, !is_ordinary(properties));
}

void pools_destroyed(process *p, mg_pool handle) {
    pthread_mutex_lock(&p->lock);
    pool *const entry = pools_entry(p, handle);
    if (entry != NULL) {
        entry->handle = NULL;
        entry->threshold = 0;
    }
    pthread_mutex_unlock(&p->lock);
}

void pools_shared(process *p, const mg_driver *d, mg_pool handle, const mg_access *access, size_t count) {
    mg_device own;
    bool harmless = d->ctx_get_device(&own) == MG_SUCCESS;
    // The device itself can reach its memory anyway.
    for (size_t i = 0; i < count && harmless; ++i)
        harmless = access[i].location.type == MG_LOCATION_DEVICE && access[i].location.id == own &&
                   access[i].flags == MG_ACCESS_READ_WRITE;
    if (harmless) return;
    pool *const entry = enter(p, d, handle, true);
    pthread_mutex_lock(&p->lock);
    if (entry != NULL) entry->plain = true;
    pthread_mutex_unlock(&p->lock);
}

void pools_set(process *p, mg_pool handle, int attribute, uint64_t value) {
    pthread_mutex_lock(&p->lock);
    pool *const entry = pools_entry(p, handle);
    if (entry != NULL) {
        // The high ones can only be set to 0, which means: to what they are now.
        if (attribute == MG_POOL_RELEASE_THRESHOLD) {
            if (value < entry->threshold) atomic_store_explicit(&p->emptied, true, memory_order_release);
            entry->threshold = value;
        }
        if (attribute == MG_POOL_RESERVED_HIGH) entry->reserved_high = entry->reserved;
        if (attribute == MG_POOL_USED_HIGH) entry->used_high = entry->used;
    }
    pthread_mutex_unlock(&p->lock);
}

uint64_t pools_get(process *p, mg_pool handle, int attribute) {
    pthread_mutex_lock(&p->lock);
    const pool *const entry = pools_entry(p, handle);
    const pool found = entry != NULL ? *entry : (pool){0};
    pthread_mutex_unlock(&p->lock);
    switch (attribute) {
        case MG_POOL_RESERVED: return found.reserved;
        case MG_POOL_RESERVED_HIGH: return found.reserved_high;
        case MG_POOL_USED: return found.used;
        case MG_POOL_USED_HIGH: return found.used_high;
        default: return 0;
    }
}

void pools_take(pool *from, uint64_t size) {
    from->used += size;
    if (from->used > from->used_high) from->used_high = from->used;
}

void pools_return(pool *to, uint64_t size) { to->used -= size; }

void pools_reserve(pool *of, uint64_t memory) {
    if (of == NULL) return;
    of->reserved += memory;
    if (of->reserved > of->reserved_high) of->reserved_high = of->reserved;
}

void pools_release(pool *of, uint64_t memory) {
    if (of != NULL) of->reserved -= memory;
}

uint64_t pools_most(const pool *of, uint64_t memory) {
    const uint64_t now = of->used + memory, high = now > of->used_high ? now : of->used_high;
    const uint64_t most = high + high / 2;
    return most > HELD_AT_LEAST ? most : HELD_AT_LEAST;
}

void pools_forget(process *p) {
    pthread_mutex_lock(&p->lock);
    memset(p->pools, 0, sizeof p->pools);
    pthread_mutex_unlock(&p->lock);
}
