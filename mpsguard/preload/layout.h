// Where the parts of a region lie, and how much may be armed: arithmetic only, no driver, no state.
//
// mpsguard/preload/zone_layout.py is the same in Python; a test runs the two against each other.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LAYOUT_PLACE_END = 0, LAYOUT_PLACE_START = 1 };

// Offsets from the start of the reserved addresses, in bytes:
//
//     0            front                                front + memory      total
//     | front zone | memory (user: [user, user + size)) | back zone         |
typedef struct {
    uint64_t front;
    uint64_t memory;
    uint64_t back;
    uint64_t total;
    uint64_t user;
} layout;

// Rounded up to a multiple of `unit`, a power of two; 0 if that does not fit.
uint64_t layout_round_up(uint64_t value, uint64_t unit);

// Lays out `size` bytes. `granularity` (of memory and zones) and `alignment` (of the user's address) are powers of two,
// `alignment` no greater than `granularity`. False if a size is 0 or the sum does not fit into 47 bits, which is what a
// process has of addresses.
bool layout_plan(uint64_t size, uint64_t front, uint64_t back, uint64_t granularity, uint64_t alignment, int placement,
                 layout *out);

// Where in memory that is laid out `size` bytes lie; the memory may be more than they need.
uint64_t layout_place(const layout *at, uint64_t size, uint64_t alignment, int placement);

// How many bytes of zones may be armed in this process while the card has `free` bytes: a quarter of what is left over
// `margin`, and never more than `limit`. A quarter, because other clients of the card arm zones too, and because managed
// memory beyond what is free can hang the GPU.
uint64_t layout_allowed(uint64_t free, uint64_t margin, uint64_t limit);

// The length of one zone when `left` bytes may still be armed: what is wanted, but no more than a sixteenth of what is
// left, in whole units; never less than one unit if any was wanted.
uint64_t layout_zone(uint64_t wanted, uint64_t left, uint64_t granularity);
