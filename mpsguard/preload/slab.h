// Small allocations: several share a region of 2 MiB, as they share a block of that size in plain CUDA.
//
// The zones stand around the slab, so an access past a small allocation is caught when it leaves the slab; before that
// it meets a neighbour, as it does in plain CUDA.
#pragma once

#include "region.h"

// The greatest size that is served from a slab: plain CUDA, too, gives more than half a block a block of its own.
#define SLAB_MOST ((uint64_t)1 << 20)

// Memory in the current context, of a pool or none. COUNTER_COUNT, or why there is none.
counter slab_allocate(process *p, const mg_driver *d, const context_entry *c, pool *of, uint64_t size,
                      mg_address *out);

// Takes the allocation that starts at `address` out of use without giving its memory up. Its size, and the memory that
// it has; 0 if there is none. The caller holds the lock for this and the two below.
uint64_t slab_set_aside(const region *r, mg_address address, uint64_t *bytes);

// Such memory becomes an allocation again: of `size` bytes, in the same units, or of what it was (0). Returns its size.
uint64_t slab_take_back(const region *r, mg_address address, uint64_t size);

// Such memory is free again.
void slab_return(process *p, const region *r, mg_address address);

// The allocation that holds `address`: where it starts and its size. The caller holds the lock.
bool slab_find(const region *r, mg_address address, mg_address *start, uint64_t *size);

// Frees the allocation that starts at `address` after the context's work: MG_INVALID_VALUE if there is none.
mg_result slab_free(process *p, const mg_driver *d, region *r, mg_address address);

// Frees what was put off during a capture.
void slab_drain(process *p, const mg_driver *d);

// Gives back all slabs in which nothing is; false if there were none.
bool slab_release_empty(process *p, const mg_driver *d);

// Gives back empty slabs of a pool while more than `most` bytes of it are reserved. `most` NULL: its release threshold.
void slab_release_excess(process *p, const mg_driver *d, const pool *of, const uint64_t *most);

// Gives back slabs in which nothing is, all but one of each pool and of each context.
void slab_tidy(process *p, const mg_driver *d);

// Forgets the slab of a withdrawn region.
void slab_forget(process *p, slab *s);
