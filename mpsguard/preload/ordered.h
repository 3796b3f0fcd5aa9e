// Stream-ordered allocation (cuMemAllocAsync, cuMemAllocFromPoolAsync, cuMemFreeAsync) from regions.
//
// A region is usable as soon as it is made, which is a legal answer to an allocation in stream order. A free in stream
// order puts the memory aside behind an event (streams.h, waiting.h), and the host waits for nothing.
#pragma once

#include "process.h"

// Memory of ours for `size` bytes from a pool (NULL: the one current to the device), to be used in the stream; 0 if it
// shall be plain, after counting why.
mg_address ordered_allocate(const mg_driver *d, uint64_t size, mg_pool handle, mg_stream stream, const void *caller);

// Frees the allocation of ours that starts at `address` behind the stream's work. False if that is the driver's affair;
// its answer is in `result` otherwise.
bool ordered_free(const mg_driver *d, mg_address address, mg_stream stream, mg_result *result);

// cuMemFree of memory that was allocated in stream order: the driver takes it that nothing uses it any more, and waits
// for nothing. False if there is no such allocation of ours at `address`.
bool ordered_free_at_once(const mg_driver *d, mg_address address);

// What a synchronisation that begins now will show, for ordered_synchronized; 0: nothing.
uint64_t ordered_point(void);

// What a synchronisation was for.
typedef enum { ORDERED_STREAM, ORDERED_CONTEXT, ORDERED_EVENT } ordered_kind;

// A synchronisation that began at `point` is over: as the driver's pools do, ours give back what their release thresholds
// do not let them keep.
void ordered_synchronized(const mg_driver *d, ordered_kind kind, mg_stream stream, mg_context context, uint64_t point);

// Gives back what can be of a pool, down to `most` bytes reserved.
void ordered_trim(const mg_driver *d, mg_pool handle, uint64_t most);

// A context is gone (NULL: the device's primary one), and its regions are about to go.
void ordered_forget(process *p, mg_context context, mg_device device);
