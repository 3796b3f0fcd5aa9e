// What the environment says (docs/reference/preload.md lists the variables). Read once, before the first allocation.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    bool enabled;
    bool snapshots;         // other processes may ask for a snapshot
    bool slabs;             // allocations of at most half a unit come from slabs of one unit
    uint64_t front, back;   // bytes of zone wanted before and behind a region
    uint64_t alignment;     // of user addresses
    int placement;          // LAYOUT_PLACE_*
    uint64_t limit;         // most bytes armed
    const char *uvm;        // path of the UVM device as /proc/self/fd shows it
    const char *report;     // file for the line at exit, or NULL
    const char *plain_callers;  // colon-separated beginnings of file names
    unsigned refused;       // variables with a value that is not allowed; the default holds for them
} settings;

// Reads the environment; strings point into it.
settings settings_read(void);

// "4096", "64K", "2M", "1G" to bytes; false for anything else and for what does not fit.
bool settings_bytes(const char *text, uint64_t *out);
