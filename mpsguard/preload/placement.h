// Which allocations become regions: the decision, and the two ways back.
#pragma once

#include "counters.h"
#include "process.h"

// The current context, looked up or learnt. False if there is none.
bool placement_context(process *p, const mg_driver *d, context_entry *out);

// Why an allocation in that context must be plain, or COUNTER_COUNT.
counter placement_objection(process *p, const mg_driver *d, const context_entry *c, uint64_t size, const void *caller);

// New memory in the current context, of a pool or none; 0 after counting why there is none.
mg_address placement_serve(process *p, const mg_driver *d, const context_entry *c, pool *of, uint64_t size);

// Does what was put off.
void placement_drain(process *p, const mg_driver *d);

// Memory of our own for `size` bytes, asked for from the code at `caller`; 0 if it shall be plain, after counting why.
mg_address placement_allocate(const mg_driver *d, uint64_t size, const void *caller);

// Whether there is something to give back that a plain allocation could use; it has been given back then.
bool placement_make_room(const mg_driver *d);

// The allocation of ours that holds `address`.
typedef struct {
    mg_address start;
    uint64_t size;
    mg_context context;
    mg_pool pool;  // NULL: it was not allocated in stream order
} placement;
bool placement_find(mg_address address, placement *out);

// Whether `address` is in memory of ours, be it allocated or not.
bool placement_is_ours(mg_address address);

// Frees the allocation of ours that starts at `address`, after the work of its context. False if it is none of ours;
// the driver's answer is in `result` otherwise.
bool placement_free(const mg_driver *d, mg_address address, mg_result *result);
