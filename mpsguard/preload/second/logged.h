// What of a call that does something to GPU memory is kept in the log, and how it is done again in the second driver.
#pragma once

#include "second/log.h"
#include "second/objects.h"
#include "second/work.h"

// A launch as it is kept: the attributes and the parameters' bytes follow.
typedef struct {
    object *of;                  // the function; NULL: not known
    unsigned sizes[7];           // grid, block, shared memory
    unsigned attribute_count;
    bool packed;                 // given as bytes, not one by one
    parameter_layout *layout;  // NULL: it has no parameters
    uint64_t size;               // of the parameters
} logged_launch;

// Around a call that enqueues work, or copies to the host: before it, and after the driver has taken it (in `stream`), or has not.
log_entry *logged_before(function_id id, const word *a);
void logged_after(log_entry *before, function_id id, const word *a, const work_stream *stream);
void logged_not(log_entry *before);

// A call that went into a capture, as an entry of its own; NULL if it cannot be made again: it copies from or to the host, for example.
log_entry *logged_in_capture(function_id id, const word *a);
