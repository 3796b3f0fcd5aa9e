// The program's memory pools: which of them we may serve, and what they hold of ours.
//
// A pool's own memory is the driver's. What is allocated from a pool and served by us is memory of regions, which counts
// in the pool's attributes as if the pool had it, and is held and given back by the pool's release threshold.
#pragma once

#include "process.h"

// The entry of a pool, if its allocations on `device` may be ours, or NULL. A pool that we did not see being made is
// none, except the device's default pool.
pool *pools_find(process *p, const mg_driver *d, mg_pool handle, mg_device device);

// A pool was made, destroyed, made accessible to others: what that means for allocations to come.
void pools_made(process *p, const mg_driver *d, mg_pool handle, const mg_pool_properties *properties);
void pools_destroyed(process *p, mg_pool handle);
void pools_shared(process *p, const mg_driver *d, mg_pool handle, const mg_access *access, size_t count);

// An attribute was set to `value`, as the driver has allowed.
void pools_set(process *p, mg_pool handle, int attribute, uint64_t value);

// What is ours of a pool's attribute, to be added to what the driver says; 0 for one that does not count bytes.
uint64_t pools_get(process *p, mg_pool handle, int attribute);

// All pools went with the device's primary context, and their memory.
void pools_forget(process *p);

// The caller holds the lock for all below.

// The entry of a pool, whether served or not; NULL if there is none.
pool *pools_entry(process *p, mg_pool handle);

// The program got `size` bytes, or freed them.
void pools_take(pool *from, uint64_t size);
void pools_return(pool *to, uint64_t size);

// A region of `memory` bytes came, or went. NULL: it is of no pool.
void pools_reserve(pool *of, uint64_t memory);
void pools_release(pool *of, uint64_t memory);

// How much may stay reserved when a region of `memory` bytes comes: half as much again as was ever in use at once, so
// that sizes which never come again do not pile up under a high threshold.
uint64_t pools_most(const pool *of, uint64_t memory);
