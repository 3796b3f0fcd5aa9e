// Memory that has to be at the same addresses, with its content, in the second driver (mappings.h).
#pragma once

#include "second/copies.h"

// Wrappers of the driver's functions on memory, for the copy at hand.
mg_result memory_reserve(const driver_copy *copy, const word *a);
mg_result memory_unreserve(const driver_copy *copy, const word *a);
mg_result memory_create(const driver_copy *copy, const word *a);
mg_result memory_release(const driver_copy *copy, const word *a);
mg_result memory_retain(const driver_copy *copy, const word *a);
mg_result memory_export(const driver_copy *copy, const word *a);
mg_result memory_import(const driver_copy *copy, const word *a);
mg_result memory_map(const driver_copy *copy, const word *a);
mg_result memory_unmap(const driver_copy *copy, const word *a);
mg_result memory_set_access(const driver_copy *copy, const word *a);
mg_result memory_allocate_plain(const driver_copy *copy, const word *a);
mg_result memory_allocate_pitch_plain(const driver_copy *copy, const word *a);
mg_result memory_free_plain(const driver_copy *copy, const word *a);
mg_result memory_properties(const driver_copy *copy, const word *a);

// Maps all memory into the copy at hand beside the first one, at its addresses. `replay`: what there was at the last epoch; the log has
// the rest. That copy's context is current. False if something cannot be had. `memory_leave` gives all of it back there.
bool memory_move(bool replay);
void memory_leave(void);

// After memory_move(false) that is of no use: nothing of it is held there any more, host memory and handles included.
void memory_take_back(void);

// At the commit: what the copy at work has is the program's from now on.
void memory_go_on(void);

// What the driver at hand has of all that is mapped, before that: `memory_let_go` lets it go of that, and frees it. Its context is current.
typedef struct memory_list memory_list;
memory_list *memory_all(void);
void memory_let_go(const driver_copy *left, memory_list *all);

// Whether both drivers read the same in some of what is mapped. The context of the copy at work is current again afterwards.
bool memory_is_the_same(void);
