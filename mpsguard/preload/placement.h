// Which allocations become regions: the decision, and the two ways back.
#pragma once

#include "process.h"

// Memory of our own for `size` bytes, asked for from the code at `caller`; 0 if it shall be plain, after counting why.
mg_address placement_allocate(const mg_driver *d, uint64_t size, const void *caller);

// Whether there is something to give back that a plain allocation could use; it has been given back then.
bool placement_make_room(const mg_driver *d);

// The allocation of ours that holds `address`.
typedef struct {
    mg_address start;
    uint64_t size;
    mg_context context;
} placement;
bool placement_find(mg_address address, placement *out);

// Whether `address` is in memory of ours, be it allocated or not.
bool placement_is_ours(mg_address address);

// Frees the allocation of ours that starts at `address`, after the work of its context. False if it is none of ours;
// the driver's answer is in `result` otherwise.
bool placement_free(const mg_driver *d, mg_address address, mg_result *result);
