// A region: reserved addresses with real memory in the middle and an armed zone on either side.
//
// Making one is all or nothing: what fails is undone. What cannot be undone at once (the driver refuses a call) is kept
// on the pending list and tried again with the next allocation or free.
#pragma once

#include "counters.h"
#include "region_record.h"

// Makes a region for `size` bytes in the current context, of a pool or none, to be entered; NULL, and why it could not be
// made.
region *region_make(process *p, const mg_driver *d, const context_entry *c, pool *of, uint64_t size, counter *why);

// A region with freed memory gets a new allocation, no greater than its memory. The caller holds the lock.
void region_use_again(process *p, region *r, uint64_t size);

// Enters a region where it can be found, and freed by other threads; false if there is no host memory for that. The caller
// holds the lock.
bool region_enter(process *p, region *r);

// Makes a descriptor of the memory that is mapped at `memory`; `fd` is -1 if the driver refuses. Needs no context.
mg_result region_export(const mg_driver *d, mg_address memory, int *fd);

// Waits for the work of the region's context; the driver's error if that is not possible.
mg_result region_sync(const mg_driver *d, const region *r);

// Takes a region out of what can be found. The caller holds the lock.
void region_withdraw(process *p, region *r);

// Gives the memory of a withdrawn region back, and keeps its addresses and zones for the next one if there is room.
void region_free(process *p, const mg_driver *d, region *r);

// Takes a withdrawn region apart; what the driver will not take now is put off.
void region_unmake(process *p, const mg_driver *d, region *r);

// Puts a withdrawn region off; `sync`: work that uses it may still run.
void region_defer(process *p, region *r, bool sync);

// Tries again what was put off, unless a capture is under way.
void region_drain(process *p, const mg_driver *d);

// Whether it is of that context, or of the device's primary one (context NULL).
bool region_is_of(const region *r, mg_context context, mg_device device);

// Takes every region of a context apart that is no more, or of a device's primary context (context NULL). `forget` is
// called with the slab of each that is one.
void region_drop(process *p, const mg_driver *d, mg_context context, mg_device device,
                 void (*forget)(process *p, slab *s));
