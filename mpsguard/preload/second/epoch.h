// Epochs: moments at which no stream has work and all that a program has in GPU memory is held, so that after a fault it can be
// put back, and what was done since (log.h) done again. With one, a program is taken over that has work in flight.
#pragma once

#include "second/copies.h"

// Whether there is spare memory for them (MPSGUARD_SECOND_SPARE_MIB).
bool epoch_is_wanted(void);

// Whether one may be made: the last one is long enough ago, and something was done, or freed, since.
bool epoch_is_due(void);

// Whether the program should be stopped for one: it gives no other opportunity, or the log fills.
bool epoch_is_overdue(void);

// Makes one. Calls that enqueue work wait meanwhile. `drain`: waits for the work in flight; else there is none if none is known.
// The context of the copy at hand is current. False if there is work, or if it fails: then the last one holds, or none.
bool epoch_make(int device, bool drain);
