// What the program tells the guard of its second driver: whether it would live through a fault, and what came of one.
//
// It lies in the zone table (zone_table.h), so the guard reads it when it likes and nothing here waits. It is the program's
// word about itself. mpsguard/preload/second_claim.py reads it.
#pragma once

#include <stdbool.h>

typedef enum {
    CLAIM_NONE,
    CLAIM_WAITING,
    CLAIM_GOING_OVER,
    CLAIM_WENT_OVER,  // it waits again
    CLAIM_REFUSED,
    CLAIM_MOVED,      // without a fault (move.h); it waits again
} claim_phase;

// Of a repetition alone (alone.h).
typedef enum {
    CLAIM_NOT_REPEATED,
    CLAIM_UNDER_WAY,
    CLAIM_COMPLETED,
    CLAIM_FAULTED,    // in work that was in flight
    CLAIM_NO_RESULT,
} claim_outcome;

// Says of a program that waits why it would not live (NULL: nothing is in the way). What was said last is not written again.
void claim_wait(bool hot, const char *reason);

// Says how far the program has come, and why it has not lived, or would not.
void claim_say(claim_phase phase, bool hot, const char *reason);

// Says whether the next driver is being made ready, ahead of a fault.
void claim_makes_ready(bool does);

// Says what becomes of its repetition.
void claim_repetition(claim_outcome outcome);
