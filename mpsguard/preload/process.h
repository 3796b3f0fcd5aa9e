// The state of one process, made with its first allocation and never freed.
//
// It lies in memory that the kernel wipes in a child (MADV_WIPEONFORK), so a child sees at once, however it was forked,
// that nothing here is its own: it passes everything on, as CUDA itself is of no use after a fork.
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver_api.h"
#include "settings.h"
#include "uvm_zone.h"
#include "zone_table.h"

typedef struct region region;
typedef struct imported imported;  // memory of another process

typedef struct {
    mg_context context;
    mg_device device;
    bool primary;
} context_entry;

typedef struct {
    mg_stream stream;
    mg_context context;
    int mode;
    const void *thread;  // the address of a variable of its own
} capture_entry;

typedef struct {
    _Atomic bool known;  // and so are the rest, from then on
    bool usable;    // it has what regions and zones need
    bool rdma;      // memory can be made fit for GPUDirect RDMA, as plain memory is
    uint64_t granularity;
    _Atomic int reached;  // by all other visible devices (devices.c)
} device_entry;

// A memory pool of the program's as far as its allocations are ours. All in bytes.
typedef struct {
    mg_pool handle;      // NULL: none, or one that was destroyed; its entry is free once nothing is reserved
    bool plain;          // its allocations are the driver's
    uint64_t threshold;  // what may stay reserved at a synchronisation
    uint64_t used, used_high;          // what the program asked for and has
    uint64_t reserved, reserved_high;  // memory of regions: what is used, and what waits to be used again
    uint64_t waiting;                  // of that, freed memory
} pool;

enum {
    PROCESS_CONTEXTS = 16,
    PROCESS_DEVICES = 64,
    PROCESS_CAPTURES = 256,
    PROCESS_POOLS = 64,
    // Four to each power of two.
    PROCESS_WAITING = 4 * 48,
};

typedef struct {
    _Atomic uint64_t owner;  // PROCESS_OWNER, or 0 in a child
    settings set;
    // Written without the lock (captures: with it): they only say "plain from now on", or how many.
    _Atomic int captures;
    _Atomic bool green;
    _Atomic int devices;  // visible ones; 0: not asked yet
    _Atomic uint64_t devices_used;  // a bit for each of which the program has, or had, a context
    _Atomic size_t waiting_count;  // of all below
    _Atomic bool emptied;          // a slab of a pool became empty, or a threshold lower, since the last synchronisation

    pthread_mutex_t lock;  // guards all below; never held over a driver call
    region **live;         // by address
    size_t live_count, live_room;
    region *pending;       // to be freed later
    struct region_drain *draining;  // those of them that threads are about to free
    struct slab *slabs;
    size_t dying;          // small allocations to be freed later
    uint64_t drains;       // a bit for the number of each drain of small allocations under way
    region *kept;          // addresses and zones without memory, newest first
    size_t kept_count;
    uint64_t kept_armed;
    uint64_t armed;        // bytes of zones, of live and kept regions
    uint32_t regions;      // made so far
    uvm_space uvm;
    zone_table table;
    capture_entry capturing[PROCESS_CAPTURES];
    size_t capturing_count;
    context_entry contexts[PROCESS_CONTEXTS];
    size_t contexts_next;
    device_entry device[PROCESS_DEVICES];
    pool pools[PROCESS_POOLS];
    struct stream *streams;                   // in which memory was freed, the one last asked for first
    size_t stream_count;
    struct waiting *waiting[PROCESS_WAITING];  // memory freed in stream order, by size, newest first
    uint64_t waiting_without_pool;            // bytes of that which cuMemAlloc had allocated
    uint64_t frees;                           // in stream order, so far
    imported *imports;                        // memory of other processes

    // Written once, under a lock of its own (service.c).
    uint8_t service_name[16];
    int service_listener;
    bool service_runs;
    _Atomic bool service_begun;
} process;

// Whether the preload is switched on in this environment.
bool process_enabled(void);

// This process's state, made if need be; NULL if it is switched off, in a child, or if there is no memory.
process *process_get(void);

// The same, but nothing is made.
process *process_if_any(void);

// True while this thread is inside the preload: what the driver calls through our symbols then is passed on.
extern __thread int process_inside __attribute__((tls_model("initial-exec"), visibility("hidden")));
