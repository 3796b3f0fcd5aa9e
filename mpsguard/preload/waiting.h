// Memory that was freed in stream order and is not given back yet: it waits for its stream, and then for its next use.
//
// It may be used again at once in the same stream, where work comes after the free; anywhere once the free is over. It
// is unmapped only when its free is over, so nothing has to be waited for then.
#pragma once

#include "region.h"
#include "streams.h"

typedef struct waiting waiting;
struct waiting {
    waiting *next;
    region *region;
    pool *of;         // the region's
    mg_address address;
    uint64_t bytes;   // of memory: a region's, or whole units of a slab
    stream *stream;   // NULL: its free is over
    uint64_t number;  // of the free
};

// Takes the memory at `address`, an allocation of `r`, out of use, for w; the caller enters it with waiting_enter. With
// waiting_undo it is the program's again. The caller holds the lock for all of them.
bool waiting_begin(process *p, waiting *w, region *r, mg_address address, stream *s);
void waiting_enter(process *p, waiting *w);
void waiting_undo(process *p, waiting *w);

// The region went with its context while w was neither entered nor undone. The caller holds the lock.
void waiting_lose(process *p, waiting *w);

// What was found for an allocation.
typedef struct {
    mg_address address;  // 0: nothing
    stream *in_doubt;    // a free in that stream, which may be over by now, would have done
} waiting_found;

// Memory of a pool for `size` bytes to be used in the stream `s` (NULL: one in which nothing was freed).
waiting_found waiting_take(process *p, const context_entry *c, const pool *from, uint64_t size, const stream *s);

// Gives back to their slabs what small allocations of a pool are over.
void waiting_return_small(process *p, const pool *of);

// Gives back what is over while more than `most` bytes of the pool are reserved, the greatest first; of what belongs to
// no pool (NULL), everything. True if anything was.
bool waiting_release(process *p, const mg_driver *d, const pool *of, uint64_t most);

// Everything that is over, of every pool and of none.
bool waiting_release_all(process *p, const mg_driver *d);

// What the release thresholds of the pools, and no pool, do not let us keep.
bool waiting_release_excess(process *p, const mg_driver *d);

// Whether there is such memory, be it over or not.
bool waiting_exceeds(process *p);

// Frees that are over no longer count in the streams they were made in. The caller holds the lock.
void waiting_leave_streams(process *p);

// The regions of a context (NULL: of the device's primary one) are about to go. The caller holds the lock.
void waiting_forget(process *p, mg_context context, mg_device device);
