// The replay: what the log has, done again in another copy of the driver, which has the memory of the last epoch.
#pragma once

#include "second/copies.h"

// That many calls are enqueued at most; then it is looked whether they end.
#define REPLAY_BATCH 256

// Repeats all of it, and waits until it is done. False, with a reason, if a call fails, if it does not end, or if something else came
// of it than the program has seen. The context of the copy at hand is current.
//
// Alone (alone.h), a fault is told from the other failures: REASON_repeated_fault if it was in work that was in flight.
bool replay_log(long *count, double most_seconds);
