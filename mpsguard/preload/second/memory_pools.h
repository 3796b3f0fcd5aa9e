// The default memory pool: what the preload serves of it is memory like any other, so that the pool itself holds none, and only its
// settings are carried over. What the driver allocates of a pool ends with it.
#pragma once

#include "second/copies.h"

// Wrapper of what allocates and frees in stream order, and of the attributes of pools.
mg_result memory_pools_call(const driver_copy *copy, function_id id, const word *a);

// Gives the second driver's pool the settings that the program has made.
bool memory_pools_move(void);
