// Spare memory: the content that all GPU memory had at the last epoch (epoch.h).
//
// It is memory of the driver at hand like the program's, so it outlives that one, too.
#pragma once

#include "second/log.h"
#include "second/mappings.h"

// Room for a copy of all memory, `most` bytes of it; what was unmapped since the epoch before is freed. While no call is under way, and
// no stream has work. False if there is too little: the log says so then, and no spare memory is left.
bool spare_make_room(uint64_t most, int device);

// Right after that: copies all memory there. False if a copy fails.
bool spare_fill(void);

// Whether the program has unmapped memory that is kept until the next epoch; whether that, or a copy, takes memory of the GPU.
bool spare_keeps_freed(void);
bool spare_is_held(void);

// Frees all of it; the log is broken before. False if there was none.
bool spare_give_up(void);

// Frees that of what is unmapped while there is no log.
void spare_drop(const mapping *m);

// In the second driver, with its context current: the memory of the last epoch with its content.
bool spare_restore(void);

// Repeats LOG_MAP there, or LOG_UNMAP once all work is done.
bool spare_repeat(const log_entry *entry);

// At the commit: it is the program's no more, and stays with the driver that is left. The next one unmaps it later (ahead_end).
void spare_end(void);
