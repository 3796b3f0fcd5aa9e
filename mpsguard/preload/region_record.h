// What is known of a region; region.h has what is done with one.
#pragma once

#include "layout.h"
#include "process.h"

typedef struct slab slab;

struct region {
    mg_address start;
    layout at;
    mg_context context;
    mg_device device;
    bool primary;
    bool reserved, mapped, held;  // what the driver still has of it: addresses, a mapping, a handle
    mg_handle handle;
    uint64_t front_armed, back_armed;  // 0 or the zone's length
    uvm_before front_before, back_before;
    mg_address user;
    uint64_t size;
    slab *slab;  // it is cut into small allocations
    pool *pool;  // its memory counts there; NULL: it was not allocated in stream order
    mg_pool pool_handle;  // as the program knows it
    bool aside;  // freed, and not given back yet: in stream order (waiting.h), or its work is waited for
    int shared;       // a descriptor of its memory for other processes (ipc.h), or -1
    uint8_t key[16];  // by which they ask for it
    bool sync;   // on the pending list: work that uses it may still run
    int32_t slot;
    uint32_t number;
    region *next;  // on the pending or kept list
};
