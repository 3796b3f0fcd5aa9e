#define _GNU_SOURCE
#include "second/alone.h"

#include <stdlib.h>
#include <string.h>

#include "second/beside.h"
#include "second/claim.h"
#include "second/host_memory.h"
#include "second/lane.h"
#include "second/limits.h"
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
    // Whether kernels work in host memory shows alone (memory_move).
    if (chosen != NULL && strcmp(chosen, "beside") == 0) return host_memory_was_named();
    char said[16];
    if (!lane_ask("get_mpsguard_repetition", said, sizeof said)) return true;
    if (strcmp(said, "refused") == 0) reasons_hold(REASON_proven_culprit);
    return strcmp(said, "beside") != 0 || host_memory_was_named();
}

static claim_outcome outcome_of(bool done) {
    if (done) return CLAIM_COMPLETED;
    return reasons_has(REASON_repeated_fault) ? CLAIM_FAULTED : CLAIM_NO_RESULT;
}

bool alone_repeat(steps *of) {
    reason why;
    claim_repetition(CLAIM_UNDER_WAY);
    bool done = steps_end(of, &of->context, beside_make(PLACE_ALONE) && beside_enter(PLACE_ALONE) && limits_set()) &&
                steps_end(of, &of->memory, memory_move(true)) &&
                steps_end(of, &of->objects, rebuild_at_takeover() && variables_restore()) &&
                steps_end(of, &of->replay, replay_log(&of->calls, most_seconds())) && variables_take() && !reasons_any(&why);
    if (!done && !reasons_any(&why)) reasons_hold(REASON_not_repeated);
    // A context that is lost, or has work that does not end, is left to the end of the process.
    if (done) {
        memory_leave();
        beside_end_alone();
    }
    copies_work_with(NULL);
    claim_repetition(outcome_of(done));
    return done;
}
