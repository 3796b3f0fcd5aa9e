// GPU memory that is kept for a takeover, and mapped ahead of it: as long as the program does not need it.
#pragma once

#include <stdbool.h>

#include "second/reasons.h"

// Under the lock of a takeover: whether the second driver is there to be made ready; its context is current then.
bool room_is_prepared(void);

// Unmaps what the program has no more, and maps so much ahead at most. Without the lock: a call of the program waits for one step.
void room_map_ahead(int most);

// Under the lock: spare memory is given up; false if there was none.
bool room_give_up_spare(reason why, const char *detail);

// A call failed for want of GPU memory: true if there is more now.
bool room_is_made(void);

// The program asks how much is free: what it has freed is, unless that would have to be waited for.
void room_is_asked(void);
