// Host memory that the GPU reads and writes: the program's own pages, registered with each driver.
#pragma once

#include "second/copies.h"

// Wrappers of the driver's functions on it, for the copy at hand.
mg_result host_memory_allocate(const driver_copy *copy, function_id id, const word *a);
mg_result host_memory_flags(const driver_copy *copy, const word *a);
mg_result host_memory_free(const driver_copy *copy, const word *a);
mg_result host_memory_register(const driver_copy *copy, const word *a);
mg_result host_memory_unregister(const driver_copy *copy, const word *a);

// Whether there is any, or has been.
bool host_memory_is_there(void);

// Whether any of these bytes is such memory.
bool host_memory_is_pinned(word at, uint64_t size);

// Takes note if one of the words at `bytes` is an address of such memory; `to`: where they are on the GPU, for it reads whole words
// there. They are what a kernel was given, or what was put where kernels read.
void host_memory_look(const void *bytes, uint64_t size, word to);

// Whether that was ever so: kernels may work in such memory, for they may have put the address anywhere. Most do not: what looks
// like an address is also what was left on a stack.
bool host_memory_was_named(void);

// Registers it with the second driver in the lane, as far as it is not. False if something cannot be had. This and what follows: under
// the lock of a takeover, and with the context of the second driver current.
bool host_memory_move(void);

// Ahead of that (ahead.h): what was there before the last look is old enough. A step registers one; false if none is left, and `all`
// becomes false if some are too young. `host_memory_drop` ends what the program has no more; false if there was none.
void host_memory_age(void);
bool host_memory_step(bool *all);
bool host_memory_drop(void);

// The other way: no part of it is registered there any more. `reachable`: it can be unregistered.
void host_memory_leave(bool reachable);

// At the commit: what the copy at work has registered is the program's.
void host_memory_go_on(void);

// What is registered now: `host_memory_let_go` lets a driver go of that, and frees it. Its context is current.
typedef struct {
    size_t count;
    word *at;
} host_memory_list;
host_memory_list host_memory_all(void);
void host_memory_let_go(const driver_copy *left, host_memory_list *all);
