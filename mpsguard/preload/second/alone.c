#define _GNU_SOURCE
#include "second/alone.h"

#include <stdlib.h>
#include <string.h>

#include "second/beside.h"
#include "second/claim.h"
#include "second/lane.h"
#include "second/memory.h"
#include "second/reasons.h"
#include "second/rebuild.h"
#include "second/replay.h"
#include "second/variables.h"

// A verdict is changed for 30 s after a fault (mpsguard/guard/triage/rolling.py).
#define DEFAULT_SECONDS 20

static double most_seconds(void) {
    const char *const text = secure_getenv("MPSGUARD_SECOND_ALONE_SECONDS");
    char *end = NULL;
    const double value = text != NULL ? strtod(text, &end) : 0;
    return text != NULL && end != text && *end == '\0' && value > 0 ? value : DEFAULT_SECONDS;
}

bool alone_is_wanted(void) {
    const char *const chosen = secure_getenv("MPSGUARD_SECOND_REPETITION");
    if (chosen != NULL && strcmp(chosen, "beside") == 0) return false;
    char said[16];
    if (!lane_ask("get_mpsguard_repetition", said, sizeof said)) return true;
    if (strcmp(said, "refused") == 0) reasons_hold(REASON_proven_culprit);
    return strcmp(said, "beside") != 0;
}

static claim_outcome outcome_of(bool done) {
    if (done) return CLAIM_COMPLETED;
    return reasons_has(REASON_repeated_fault) ? CLAIM_FAULTED : CLAIM_NO_RESULT;
}

bool alone_repeat(long *repeated) {
    reason why;
    claim_repetition(CLAIM_UNDER_WAY);
    const bool made = beside_make(PLACE_ALONE) && beside_enter(PLACE_ALONE);
    bool done = made && beside_set_limits() && memory_move(true) && rebuild_at_takeover() && variables_restore() &&
                replay_log(repeated, most_seconds()) && variables_take() && !reasons_any(&why);
    if (!done && !reasons_any(&why)) reasons_hold(REASON_not_repeated);
    // A context that is lost, or has work that does not end, is left to the end of the process.
    if (done) {
        memory_leave();
        beside_end_alone();
    }
    copies_work_at(PLACE_LANE);
    claim_repetition(outcome_of(done));
    return done;
}
