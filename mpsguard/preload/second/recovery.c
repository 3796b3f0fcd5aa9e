#include "second/recovery.h"

#include "second/beside.h"
#include "second/epoch.h"
#include "second/limits.h"
#include "second/log.h"
#include "second/memory.h"
#include "second/memory_pools.h"
#include "second/reasons.h"
#include "second/rebuild.h"
#include "second/replay.h"
#include "second/variables.h"
#include "second/work.h"

// For calls that enqueue work and are under way when another thread has met the fault.
#define CALLS_END_MS 1000
// For the replay on the other lane, where each batch has a limit of its own.
#define NO_LIMIT 1e9

recovery_state recovery_at_fault(void) {
    char detail[96];
    if (!work_is_quiet(CALLS_END_MS)) {
        reasons_hold_for(REASON_work_in_flight, "a call that does not return");
        return RECOVERY_UNKNOWN;
    }
    const bool idle = work_is_idle();
    if (idle && variables_are_saved(work_total())) return RECOVERY_AS_IT_IS;
    if (log_is_on()) return RECOVERY_REPLAYED;
    if (epoch_is_wanted() || log_has_ended()) reasons_hold_for(log_why(detail, sizeof detail), detail);
    else reasons_hold(idle ? REASON_changed_variables : REASON_work_in_flight);
    return RECOVERY_UNKNOWN;
}

bool recovery_go_over(bool replay, steps *of) {
    if (!steps_end(of, &of->context, beside_make(PLACE_LANE) && beside_enter(PLACE_LANE) && limits_set())) return false;
    if (!steps_end(of, &of->memory, memory_move(replay))) return false;
    if (!steps_end(of, &of->objects, rebuild_at_takeover() && variables_restore() && memory_pools_move())) return false;
    return !replay || steps_end(of, &of->replay, replay_log(&of->calls, NO_LIMIT));
}
